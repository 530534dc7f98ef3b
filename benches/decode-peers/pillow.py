"""Pillow's ways to the model's input and libjpeg-turbo's own tool, on the pictures of the decode bench.

    cargo bench --bench decode -- --write FOLDER
    python benches/decode-peers/pillow.py FOLDER

Pillow brings its own libjpeg-turbo. `djpeg` (Debian: libjpeg-turbo-progs) reads a file, decodes it at the same scale and
writes its pixels to nowhere: no resize, but the start of a process, about 1 ms.
"""

import io
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image, features

SIZE = 224
CROP_FRACTION = 0.875
BICUBIC = Image.Resampling.BICUBIC
SECONDS = 4.0


def crop(size: tuple[int, int]) -> tuple[int, int, int, int]:
    side = int(CROP_FRACTION * min(size))
    left, top = (size[0] - side + 1) // 2, (size[1] - side + 1) // 2
    return left, top, left + side, top + side


def full(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    return image.convert("RGB").crop(crop(image.size)).resize((SIZE, SIZE), BICUBIC)


def draft(data: bytes, gap: float | None = None) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    box = crop(image.size)
    side = box[2] - box[0]
    image.draft("RGB", (width * SIZE // side, height * SIZE // side))
    across, down = image.width / width, image.height / height
    left, top, right, bottom = box[0] * across, box[1] * down, box[2] * across, box[3] * down
    box = (left, top, min(right, image.width), min(bottom, image.height))
    return image.convert("RGB").resize((SIZE, SIZE), BICUBIC, box=box, reducing_gap=gap)


def djpeg(path: Path) -> None:
    side = CROP_FRACTION * min(Image.open(path).size)
    part = next((part for part in (8, 4, 2) if side / part >= SIZE), 1)
    subprocess.run(["djpeg", "-scale", f"1/{part}", "-outfile", "/dev/null", path], check=True)


def measure(path: Path) -> None:
    data = path.read_bytes()
    ways = {"full": lambda: full(data)}
    if path.suffix == ".jpg":
        ways["draft"] = lambda: draft(data)
        ways["draft, reducing_gap=2"] = lambda: draft(data, 2.0)
        if shutil.which("djpeg"):
            ways["djpeg"] = lambda: djpeg(path)
    times = {name: [] for name in ways}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or len(times["full"]) < 7:
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    print(f"{path.name}: {len(data)} bytes, {len(times['full'])} rounds")
    for name, taken in times.items():
        print(f"  {name:<24} {statistics.median(taken):8.2f} ms  ({min(taken):.2f} least)")


if __name__ == "__main__":
    print("Pillow", Image.__version__, "with libjpeg-turbo", features.version("libjpeg_turbo"))
    for path in sorted(Path(sys.argv[1]).iterdir()):
        measure(path)
