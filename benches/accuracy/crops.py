"""Cuts a set of varied JPEGs out of large photos, for `cargo bench --bench accuracy`. The same files each time.

    python crops.py PACKAGES OUT [COUNT]

PACKAGES holds the unpacked Debian 12 packages named in PHOTOS, one folder each:

    apt-get download PACKAGE && dpkg -x PACKAGE_*.deb PACKAGES/PACKAGE

Needs Pillow and scikit-learn, which brings two photos more. Each package's copyright file names the photographers; the
licences are CC-BY, CC-BY-SA, CC0 and GPL-2+. No photo is kept in this repository.
"""

import io
import json
import math
import random
import sys
from pathlib import Path

import sklearn
from PIL import Image, ImageOps

SEED = 20_261_130
# Short sides in pixels, in steps at which another scale is decoded for an input of 224 pixels and a crop of 7/8.
SHORT_SIDES = [(360, 511), (512, 1023), (1024, 2047), (2048, 2866), (2867, 4000)]
SIZE = 224
CROP_FRACTION = 0.875
BICUBIC = Image.Resampling.BICUBIC
ASPECTS = [1.0, 4 / 3, 3 / 2, 16 / 9, 3 / 4, 2 / 3, 9 / 16, 2.2]
BACKGROUNDS = "usr/share/backgrounds"
WALLPAPERS = "usr/share/wallpapers/{}/contents/images/{}.jpg"
PHOTOS = {
    "lomiri-wallpapers-16.04": [
        f"{BACKGROUNDS}/{name}.jpg"
        for name in [
            "Bridge_by_Sander_Klootwijk",
            "Dragonfly_by_Bolly",
            "Picture_0B_by_freespace",
            "Wine_by_Jakkub_Mede",
            "aitzgorri_by_Aitzol_Berasategi",
            "free_by_Peter_Nerlich",
            "friends_by_Aitzol_Berasategi",
            "greentock_by_Peter_Nerlich",
            "life_by_Aitzol_Berasategi",
            "picosdeeuropa_by_Aitzol_Berasategi",
            "seeding_by_Clements_Engelhardt",
            "sunset_by_Aitzol_Berasategi",
        ]
    ],
    "lomiri-wallpapers-20.04": [f"{BACKGROUNDS}/Kleiber_by_Lukas_Baubkus.jpg"],
    "mate-backgrounds": [
        f"{BACKGROUNDS}/mate/nature/{name}.jpg"
        for name in [
            "Aqua",
            "Blinds",
            "Dune",
            "FreshFlower",
            "Garden",
            "LadyBird",
            "RainDrops",
            "Storm",
            "TwoWings",
            "Wood",
            "YellowFlower",
        ]
    ],
    "plasma-workspace-wallpapers": [
        WALLPAPERS.format(name, size)
        for name, size in [
            ("BytheWater", "2560x1600"),
            ("ColdRipple", "2560x1600"),
            ("ColorfulCups", "2560x1600"),
            ("EveningGlow", "2560x1600"),
            ("FallenLeaf", "2560x1600"),
            ("Grey", "2560x1600"),
            ("Kite", "2560x1600"),
            ("OneStandsOut", "2560x1600"),
            ("Path", "2560x1600"),
            ("Volna", "5120x2880"),
        ]
    ],
}


def main(packages: Path, out: Path, count: int) -> None:
    for folder in ["full", "draft"]:
        (out / folder).mkdir(parents=True, exist_ok=True)
    samples = Path(sklearn.__file__).parent / "datasets" / "images"
    paths = [packages / package / photo for package, photos in PHOTOS.items() for photo in photos]
    paths += [samples / "china.jpg", samples / "flower.jpg"]
    rng = random.Random(SEED)
    files = []
    for number in range(count):
        path = paths[number % len(paths)]
        crop, kind = cut(Image.open(path).convert("RGB"), rng)
        settings = {
            "quality": rng.randint(60, 95),
            "subsampling": rng.choice(["4:2:0", "4:2:0", "4:2:2", "4:4:4"]),
            "progressive": rng.random() < 0.4,
        }
        name = f"{number:03}.jpg"
        crop.save(out / name, **settings)
        data = (out / name).read_bytes()
        for folder, scaled in [("full", False), ("draft", True)]:
            model_input(data, scaled).save(out / folder / f"{number:03}.png")
        files.append({"file": name, "photo": "/".join(path.parts[-4:]), "kind": kind, "size": crop.size, **settings})
    (out / "crops.json").write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")


def model_input(data: bytes, scaled: bool) -> Image.Image:
    """The built-in model's input; `scaled`: from the smallest scale that covers it, by Pillow's draft mode."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    side = int(CROP_FRACTION * min(width, height))
    left, top = (width - side + 1) // 2, (height - side + 1) // 2
    if not scaled:
        return image.convert("RGB").crop((left, top, left + side, top + side)).resize((SIZE, SIZE), BICUBIC)
    image.draft("RGB", (width * SIZE // side, height * SIZE // side))
    across, down = image.width / width, image.height / height
    right, bottom = min((left + side) * across, image.width), min((top + side) * down, image.height)
    box = (left * across, top * down, right, bottom)
    return image.convert("RGB").resize((SIZE, SIZE), BICUBIC, box=box)


def cut(photo: Image.Image, rng: random.Random) -> tuple[Image.Image, str]:
    """A rectangle of the photo at its own detail, or a larger one reduced. Few photos are as large as a phone's: for the
    largest crops the others are mirrored to twice their size, which keeps subject and detail."""
    least, most = rng.choice([sides for sides in SHORT_SIDES if sides[0] <= 2 * min(photo.size)])
    if min(photo.size) < least:
        photo = mirrored(photo)
    short = log_uniform(rng, least, min(most, *photo.size))
    aspect = rng.choice([aspect for aspect in ASPECTS if fits(shape(short, aspect), photo.size)])
    size = shape(short, aspect)
    largest_zoom = min(photo.width / size[0], photo.height / size[1])
    zoom = log_uniform(rng, 1.0, largest_zoom) if rng.random() < 0.6 else 1.0
    width, height = int(size[0] * zoom), int(size[1] * zoom)
    left, top = rng.randint(0, photo.width - width), rng.randint(0, photo.height - height)
    crop = photo.crop((left, top, left + width, top + height))
    return (crop, "cut") if crop.size == size else (crop.resize(size, Image.Resampling.LANCZOS), "reduced")


def mirrored(photo: Image.Image) -> Image.Image:
    whole = Image.new("RGB", (2 * photo.width, 2 * photo.height))
    right = ImageOps.mirror(photo)
    whole.paste(photo, (0, 0))
    whole.paste(right, (photo.width, 0))
    whole.paste(ImageOps.flip(photo), (0, photo.height))
    whole.paste(ImageOps.flip(right), (photo.width, photo.height))
    return whole


def shape(short: float, aspect: float) -> tuple[int, int]:
    return int(short * max(aspect, 1.0)), int(short / min(aspect, 1.0))


def fits(size: tuple[int, int], into: tuple[int, int]) -> bool:
    return size[0] <= into[0] and size[1] <= into[1]


def log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 300)
