"""Images a second of Stoker, ONNX Runtime and PyTorch eager: same weights, threads and batch.

    python benches/infer-peers/peers.py OUT --ours target/release/deps/infer-HASH

`cargo bench --bench infer --no-run` prints the path of the bench. Networks and bundles are written into OUT. The three
take turns, and the best of all rounds counts, as a machine has other work now and then. docs/models-speed.md shows what
came out.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import timm
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision import models

LITE0 = Path(__file__).parents[2] / "fixtures" / "models" / "efficientnet-lite0"
GOLDEN = LITE0 / "golden" / "chelsea.png"
IMAGENET = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
SIZE = 224
# Largest difference between the peers' logits, relative to the largest.
TOLERANCE = 1e-3


def lite0() -> torch.nn.Module:
    model = EfficientNet.from_name("efficientnet-lite0")
    weights = {name: tensor.float() for name, tensor in load_file(LITE0 / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
    return model


# Only the first has trained weights; speed does not depend on them.
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "efficientnet-lite0": lite0,
    "mobilenet-v2": models.mobilenet_v2,
    "resnet-50": models.resnet50,
    "convnext-tiny": models.convnext_tiny,
    "vit-s-16": lambda: timm.create_model("vit_small_patch16_224"),
}


def pixels(batch: int) -> torch.Tensor:
    image = np.asarray(Image.open(GOLDEN), dtype=np.float32).transpose(2, 0, 1)
    mean, std = (np.array(IMAGENET[key], dtype=np.float32).reshape(3, 1, 1) for key in ("mean", "std"))
    return torch.from_numpy((image - mean) / std).repeat(batch, 1, 1, 1).contiguous()


@torch.inference_mode()
def write_bundle(out: Path, name: str, model: torch.nn.Module) -> Path:
    """The network as a bundle, with one golden image."""
    bundle = out / name
    if name == "efficientnet-lite0":
        shutil.copytree(LITE0, bundle, dirs_exist_ok=True)
        return bundle
    (bundle / "golden").mkdir(parents=True, exist_ok=True)
    state = {n: t.contiguous() for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}
    save_file(state, bundle / "model.safetensors")
    (bundle / "labels.txt").write_text("".join(f"class {index}\n" for index in range(1000)))
    shutil.copyfile(GOLDEN, bundle / "golden" / "chelsea.png")
    save_file({"logits": model(pixels(1)).contiguous()}, bundle / "golden" / "logits.safetensors")
    files = {}
    for path in ["model.safetensors", "labels.txt", "golden/chelsea.png", "golden/logits.safetensors"]:
        data = (bundle / path).read_bytes()
        files[path] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {
        "schema": 1,
        "name": name,
        "architecture": name,
        "classes": 1000,
        "input": {"width": SIZE, "height": SIZE},
        "preprocess": {"crop_fraction": 0.875, "filter": "bicubic", **IMAGENET},
        "activation": "softmax",
        "golden": {"images": ["golden/chelsea.png"], "tolerance": TOLERANCE},
        "files": files,
    }
    (bundle / "model.json").write_text(json.dumps(manifest, indent=2))
    return bundle


def export(path: Path, model: torch.nn.Module) -> None:
    dynamic = {"pixels": {0: "batch"}, "logits": {0: "batch"}}
    names = {"input_names": ["pixels"], "output_names": ["logits"]}
    torch.onnx.export(model, (pixels(1),), path, dynamic_axes=dynamic, opset_version=17, dynamo=False, **names)


def rate(run: Callable[[], object], batch: int, seconds: float) -> float:
    run()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        run()
        done += batch
    return done / (time.perf_counter() - start)


def ours(command: str, bundle: Path, batch: int, seconds: float, threads: int) -> float:
    arguments = [command, "--seconds", str(seconds), "--batches", str(batch), str(bundle)]
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    text = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([\d.]+) images/s", text)[1])


def compare(name: str, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    bundle = write_bundle(options.out, name, model)
    path = options.out / f"{name}.onnx"
    export(path, model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    for batch in options.batches:
        x = pixels(batch)
        values = x.numpy()
        expected = model(x).numpy()
        found = session.run(None, {"pixels": values})[0]
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
        best = {"stoker": 0.0, "onnxruntime": 0.0, "pytorch": 0.0}
        for _ in range(options.rounds):
            found = {
                "onnxruntime": rate(lambda: session.run(None, {"pixels": values}), batch, options.seconds),
                "pytorch": rate(lambda: model(x), batch, options.seconds),
            }
            if options.ours:
                found["stoker"] = ours(options.ours, bundle, batch, options.seconds, options.threads)
            best = {peer: max(best[peer], found.get(peer, 0.0)) for peer in best}
        stoker, runtime, eager = best.values()
        print(
            f"| {name} | {batch} | {stoker:.1f} | {runtime:.1f} | {eager:.1f} |"
            f" {stoker / runtime:.2f} | {stoker / eager:.2f} |",
            flush=True,
        )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for bundles and ONNX files")
    parser.add_argument("--ours", help="the bench `infer`, built")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure of each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    print("| network | batch | Stoker | ONNX Runtime | PyTorch eager | to ONNX Runtime | to PyTorch |")
    print("|---|---|---|---|---|---|---|")
    for name in options.networks:
        compare(name, options)


if __name__ == "__main__":
    main()
