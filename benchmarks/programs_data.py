"""Synthetic data for public training programs, each in the format and the place that its loader reads.

python benchmarks/programs_data.py FOLDER

FOLDER has the programs' repositories. Data for a repository that is not there is left out, and what is
written depends on the seed only. Every set can be learned, so that a loss falls as it would on real data.
"""

from __future__ import annotations

import argparse
import csv
import struct
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 0
VOCABULARY, TOKENS, LINE = 33_278, 2_088_628, 90
CHARACTERS = 1_115_394
PAPERS_TERMS, TERMS = 18, 1_433
TOPICS = (
    "Case_Based",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Reinforcement_Learning",
    "Rule_Learning",
    "Theory",
)
PHOTOS, PHOTO_SIZE = 120, (192, 128)
# How many values each column of FuxiCTR's own `tiny_csv` takes here.
CLICK_COLUMNS = {
    "userid": 20_000,
    "adgroup_id": 10_000,
    "pid": 2,
    "cate_id": 2_000,
    "campaign_id": 8_000,
    "customer": 6_000,
    "brand": 4_000,
    "cms_segid": 97,
    "cms_group_id": 13,
    "final_gender_code": 2,
    "age_level": 7,
    "pvalue_level": 4,
    "shopping_level": 3,
    "occupation": 2,
}
CLICKS = {"train": 200_000, "valid": 10_000, "test": 10_000}
CLICK_DATASET = """
    synthetic:
        data_root: ../../../data/
        data_format: csv
        train_data: ../../../data/synthetic_csv/train.csv
        valid_data: ../../../data/synthetic_csv/valid.csv
        test_data: ../../../data/synthetic_csv/test.csv
        min_categr_count: 1
        feature_cols: [{name: [COLUMNS], active: True, dtype: str, type: categorical}]
        label_col: {name: clk, dtype: float}
"""
# FuxiCTR's `DeepFM_test` but for the data, the batch and the epochs.
CLICK_MODEL = """
    DeepFM_synthetic:
        model_root: ./checkpoints/
        num_workers: 3
        verbose: 1
        early_stop_patience: 2
        pickle_feature_encoder: True
        save_best_only: True
        eval_steps: null
        debug_mode: False
        group_id: null
        use_features: null
        feature_specs: null
        feature_config: null
        model: DeepFM
        dataset_id: synthetic
        loss: binary_crossentropy
        metrics: [logloss, AUC]
        task: binary_classification
        optimizer: adam
        hidden_units: [64, 32]
        hidden_activations: relu
        net_regularizer: 0
        embedding_regularizer: 1.e-8
        learning_rate: 1.e-3
        batch_norm: False
        net_dropout: 0
        batch_size: 512
        embedding_dim: 4
        epochs: 3
        shuffle: True
        seed: 2019
        monitor: AUC
        monitor_mode: max
"""


def mnist(root: Path, rng: np.random.Generator) -> None:
    """Writes the IDX files that `torchvision.datasets.MNIST(root)` takes for downloaded ones.

    Each class is a pattern of blocks in the size of a digit, moved by up to two pixels, under noise.
    """
    blocks = np.kron(rng.random((10, 5, 5)) < 0.4, np.ones((4, 4)))
    patterns = np.pad(blocks, ((0, 0), (4, 4), (4, 4))).astype(np.uint8)
    shifts = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    moved = np.stack([np.roll(patterns, shift, (1, 2)) for shift in shifts], 1)
    raw = root / "MNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        labels = rng.integers(0, 10, count, np.uint8)
        images = moved[labels, rng.integers(0, len(shifts), count)]
        images *= rng.integers(128, 256, images.shape, np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 0x803, count, 28, 28) + images.tobytes()
        )
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels.tobytes())


def words(count: int, rng: np.random.Generator) -> list[str]:
    """Returns different made-up words of two to four syllables."""
    syllables = [onset + vowel for onset in "bcdfghjklmnpqrstvwxyz" for vowel in "aeiou"]
    made: dict[str, None] = {}
    while len(made) < count:
        made["".join(rng.choice(syllables, rng.integers(2, 5)))] = None
    return list(made)


def sequence(vocabulary: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns ids as frequent as words are (Zipf), every other one often told by the one before it."""
    frequency = 1 / np.arange(1, vocabulary + 1)
    ids = rng.choice(vocabulary, count, p=frequency / frequency.sum())
    following = rng.choice(vocabulary, vocabulary, p=frequency / frequency.sum())
    told = np.flatnonzero(rng.random(count // 2) < 0.5) * 2 + 1
    ids[told] = following[ids[told - 1]]
    return ids


def wikitext(folder: Path, rng: np.random.Generator) -> None:
    """Writes `train.txt` of as many tokens and words as WikiText-2 has, beside its other two files."""
    known = {
        word for name in ("valid", "test") for word in (folder / f"{name}.txt").read_text("utf-8").split()
    }
    made = [word for word in words(VOCABULARY, rng) if word not in known][: VOCABULARY - len(known)]
    vocabulary = np.array(sorted(known) + made)
    rng.shuffle(vocabulary)
    tokens = vocabulary[sequence(len(vocabulary), TOKENS, rng)]
    with (folder / "train.txt").open("w", encoding="utf-8") as file:
        for start in range(0, TOKENS, LINE):
            print("", *tokens[start : start + LINE], "", file=file)


def play(path: Path, rng: np.random.Generator) -> None:
    """Writes a play of as many characters as tiny Shakespeare has."""
    vocabulary = words(2_000, rng)
    spoken = iter(sequence(len(vocabulary), CHARACTERS // 3, rng))
    text, length = [], 0
    while length < CHARACTERS:
        said = [vocabulary[next(spoken)] for _ in range(rng.integers(5, 40))]
        sentence = textwrap.fill(" ".join(said).capitalize(), 50) + rng.choice([*".!?;:,"])
        text.append(f"{vocabulary[rng.integers(0, 20)].upper()}:\n{sentence}\n\n")
        length += len(text[-1])
    path.write_text("".join(text)[:CHARACTERS], encoding="utf-8")


def cora(folder: Path, rng: np.random.Generator) -> None:
    """Writes `cora.content` for the papers of `cora.cites`: a topic near that of its citations, and terms."""
    cites = np.loadtxt(folder / "cora.cites", dtype=np.int64)
    papers, ends = np.unique(cites, return_inverse=True)
    cited, citing = ends.reshape(cites.shape).T
    topics = rng.integers(0, len(TOPICS), len(papers))
    for _ in range(5):
        votes = rng.random((len(papers), len(TOPICS)))
        np.add.at(votes, (cited, topics[citing]), 1)
        np.add.at(votes, (citing, topics[cited]), 1)
        topics = votes.argmax(1)
    likely = rng.dirichlet(np.full(TERMS, 0.3), len(TOPICS))
    order = rng.permutation(len(papers))
    with (folder / "cora.content").open("w", encoding="utf-8") as file:
        for paper, topic in zip(papers[order], topics[order], strict=True):
            terms = np.zeros(TERMS, np.int8)
            terms[rng.choice(TERMS, PAPERS_TERMS, p=likely[topic])] = 1
            print(paper, *terms, TOPICS[topic], sep="\t", file=file)


def carvana(folder: Path, rng: np.random.Generator) -> None:
    """Writes pictures of an ellipse under noise in `imgs`, and where it is in `masks`."""
    width, height = PHOTO_SIZE
    rows, columns = np.mgrid[:height, :width]
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(PHOTOS):
        across, down = rng.uniform(0.3, 0.7, 2) * PHOTO_SIZE
        wide, high = rng.uniform(0.15, 0.3, 2) * PHOTO_SIZE
        mask = ((columns - across) / wide) ** 2 + ((rows - down) / high) ** 2 < 1
        inside, outside = rng.integers(0, 192, (2, 3))
        image = np.where(mask[..., None], inside, outside) + rng.integers(0, 64, (height, width, 3))
        Image.fromarray(image.astype(np.uint8)).save(folder / f"imgs/{number:03d}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / f"masks/{number:03d}_mask.png")


def clicks(folder: Path, rng: np.random.Generator) -> None:
    """Writes `train.csv`, `valid.csv` and `test.csv`, and FuxiCTR's configuration for them.

    A click is as likely as the sum of a weight for each value says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = [rng.normal(0, 0.4, values) for values in CLICK_COLUMNS.values()]
    for name, count in CLICKS.items():
        # Squares of uniform numbers, for a few frequent values and many rare ones.
        columns = [(rng.random(count) ** 2 * values).astype(int) for values in CLICK_COLUMNS.values()]
        score = sum(weight[column] for weight, column in zip(weights, columns, strict=True))
        clicked = (rng.random(count) < 1 / (1 + np.exp(1.5 - score))).astype(int)
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["clk", *CLICK_COLUMNS])
            table.writerows(zip(clicked, *columns, strict=True))
    dataset = CLICK_DATASET.replace("COLUMNS", ", ".join(CLICK_COLUMNS))
    for name, text in (("dataset", dataset), ("model", CLICK_MODEL)):
        (folder / f"{name}_config.yaml").write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")


# Of each repository: what writes its data, and where.
DATA: Mapping[str, Sequence[tuple[Callable[[Path, np.random.Generator], None], str]]] = {
    "examples": ((mnist, "data"), (wikitext, "word_language_model/data/wikitext-2")),
    "PyTorch-GAN": ((mnist, "data/mnist"),),
    "pytorch-tutorial": ((mnist, "tutorials/data"),),
    "nanoGPT": ((play, "data/shakespeare_char/input.txt"),),
    "FuxiCTR": ((clicks, "data/synthetic_csv"),),
    "pyGAT": ((cora, "data/cora"),),
    "Pytorch-UNet": ((carvana, "data"),),
    # It looks for MNIST where it is started, and in the folder of its examples.
    "pytorch-lightning": ((mnist, "examples/pytorch/basics/data"), (mnist, "examples/Datasets")),
}


def main() -> None:
    """Writes the data of the repositories that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder with the programs' repositories")
    folder: Path = parser.parse_args().folder
    for repository, parts in DATA.items():
        for write, place in parts:
            if (folder / repository).is_dir():
                print(f"{repository}/{place}", flush=True)
                write(folder / repository / place, np.random.default_rng(SEED))


if __name__ == "__main__":
    main()
