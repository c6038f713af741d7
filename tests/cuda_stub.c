/*
 * A stand-in for NVIDIA's driver library, libcuda.so.1, that has no device: it says who asks for one.
 *
 * Each call that starts the driver is a line in the file that CUDA_STUB_LOG names. CUDA_STUB_VERSION is the CUDA
 * that the driver is for (any by default), so that a build of torch may find it too old.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, NEWEST = 99000 };

static void note(const char *name)
{
    const char *path = getenv("CUDA_STUB_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", name);
        fclose(file);
    }
}

int cuInit(unsigned flags)
{
    (void)flags;
    note("cuInit");
    return NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    const char *text = getenv("CUDA_STUB_VERSION");
    note("cuDriverGetVersion");
    *version = text ? atoi(text) : NEWEST;
    return 0;
}

static int refuse(void)
{
    return NO_DEVICE;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)version;
    (void)flags;
    if (!strcmp(name, "cuInit"))
        *function = (void *)cuInit;
    else if (!strcmp(name, "cuDriverGetVersion"))
        *function = (void *)cuDriverGetVersion;
    else if (!strncmp(name, "cuGetProcAddress", strlen("cuGetProcAddress")))
        *function = (void *)cuGetProcAddress_v2;
    else
        *function = (void *)refuse;
    if (status)
        *status = 0;
    return 0;
}
