"""A script that goes wrong, as it is told on its command line."""

import os
import signal
import subprocess
import sys
import time

import work

how, batch_size = sys.argv[1], int(sys.argv[2])


def steps(count, pause=0.0):
    for step in range(1, count + 1):
        work.train_step(batch_size)
        time.sleep(pause)
        print(f"step {step} loss {work.loss_after(step * batch_size):.4f}")


if how == "hang":
    steps(20, pause=0.02)
    while True:
        time.sleep(60)
elif how == "hang-at-once":
    # Not even Ctrl-C ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)
elif how == "fork":
    # Two daemons, one in a session of its own and deaf.
    subprocess.Popen(["sleep", "1234.5"])
    subprocess.Popen(["setsid", "sh", "-c", "trap '' INT TERM; sleep 1234.5"])
    steps(10_000_000)
elif how == "endless":
    line = b"\x1b[31m" + b"x" * 4000 + b"\x1b[0m\n"
    while True:
        os.write(1, line)
elif how == "nothing":
    print("I have trained nothing.")
elif how == "unit":
    for count in range(1, 10_000):
        time.sleep(0.02)
        # Milliseconds, then seconds, and so on: a slow machine's windows begin later.
        print(f"ms/batch {20.0 if count % 30 < 15 else 0.02:.4f}")
elif how == "contradiction":
    for step in range(1, 10_000):
        time.sleep(0.02)
        print(f"step {step}  {batch_size / 20:.4f} samples/s")
elif how == "cuda-oom":
    steps(5)
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free")
elif how == "host-oom":
    raise MemoryError
elif how == "hub":
    steps(5)
    sys.exit("OfflineModeIsEnabled: Cannot reach https://huggingface.co: offline mode is enabled.")
elif how == "killed":
    steps(5)
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "nan":
    steps(20)
    print("step 21 loss nan")
    time.sleep(60)
elif how == "nan-at-once":
    print("step 1 loss nan")
    time.sleep(60)
elif how == "raise":
    os.stat("no/such/file")
elif how == "short":
    steps(300)
elif how == "polite":
    try:
        steps(10_000_000)
    except KeyboardInterrupt:
        print("good bye")
elif how == "environment":
    print({name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "OWN")})
    with open("result.txt", "w") as file:
        file.write("x")
    steps(10_000_000)
