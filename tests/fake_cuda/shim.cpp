// Lets tensors without data say that they are on `cuda`, on a build of torch that has no CUDA.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kFirst(c10::kCUDA, 0);

// Guards nothing: there is one device, and nothing ever runs on it.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return kFirst; }
  c10::Device exchangeDevice(c10::Device) const override { return kFirst; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kFirst);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(kFirst); }
};

// Registered by the name of the class.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return kFirst; }
};

} // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, ::Guard)
}
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
