"""CIFAR and ImageNet as they lie on a disk, in miniature; and what is said where they do not."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from same_bits import Reason, assert_same_bits, same_integers

from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.images import folder_split as imagenet
from comt_cli.data.images.sets.imagenet import ImageNet
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.images.torchvision_import import torchvision_datasets
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import uniform_draws
from comt_cli.data.prepare import fingerprint, known_content, prepare
from comt_cli.errors import UserError

IMAGES_A_FILE = 4


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path, str]:
    """(torchvision's class, the folder, the name) of a CIFAR of few images, in the format and checked as the real."""
    datasets = torchvision_datasets()
    kind = datasets.CIFAR10 if request.param == "cifar10" else datasets.CIFAR100
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    generator = np.random.default_rng(0)
    label_key = "labels" if request.param == "cifar10" else "fine_labels"
    names = [f"class {number}" for number in range(10 if request.param == "cifar10" else 100)]

    def write(name: str, content: dict[str, Any]) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    for attribute in ("train_list", "test_list"):
        files = [
            [name, write(name, {
                "data": generator.integers(0, 256, (IMAGES_A_FILE, 3072), dtype=np.uint8),
                label_key: generator.integers(0, len(names), IMAGES_A_FILE).tolist(),
            })]
            for name, _ in getattr(kind, attribute)
        ]  # fmt: skip
        monkeypatch.setattr(kind, attribute, files)
    meta = kind.meta["filename"]
    md5 = write(meta, {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
    return kind, tmp_path, request.param


def test_cifar_is_what_torchvision_reads(cifar: tuple[Any, Path, str]) -> None:
    kind, folder, name = cifar
    data = ImageDataSettings(images=name, folder=str(folder))
    dataset = prepare(data)
    for side, train in ((dataset.train, True), (dataset.validation, False)):
        expected = kind(folder, train=train)
        assert same_integers(side.pixels, expected.data)
        assert side.labels.tolist() == expected.targets
    assert list(dataset.class_names) == kind(folder).classes
    assert dataset.fingerprint == fingerprint(data)
    assert dataset.mean == pytest.approx((kind(folder).data / 255).mean((0, 1, 2)))
    fewer = prepare(data.model_copy(update={"train_images": 3}))
    assert same_integers(fewer.train.pixels, dataset.train.pixels[:3])  # type: ignore[index]
    assert fewer.content_hash != dataset.content_hash == prepare(data).content_hash


def test_damaged_cifar_is_named(cifar: tuple[Any, Path, str]) -> None:
    kind, folder, name = cifar
    path = folder / kind.base_folder / kind.train_list[0][0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{name} is damaged or incomplete in {folder}"):
        prepare(ImageDataSettings(images=name, folder=str(folder)))


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(torchvision_datasets().utils, "_get_redirect_url", refuse)


def test_cifar_without_data_and_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(UserError, match=r"cifar10 is not in .* and cannot be downloaded: .*no network") as caught:
        prepare(ImageDataSettings(images="cifar10"))
    assert str(cache / "images" / "cifar") in caught.value.message
    assert f"cifar-10-python.tar.gz and put it into {cache / 'images' / 'cifar'}" in str(caught.value.hint)
    assert "--set data.folder=" in str(caught.value.hint)


def test_a_folder_of_cifar_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no folder {tmp_path / 'nix'} to read cifar100 from") as caught:
        prepare(ImageDataSettings(images="cifar100", folder=str(tmp_path / "nix")))
    assert caught.value.exit_status == 2
    assert f"cifar-100-python.tar.gz and put it into {tmp_path / 'nix'}" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("whole", [True, False])
def test_an_archive_of_cifar_is_unpacked_where_it_is_whole(
    cifar: tuple[Any, Path, str], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    no_network(monkeypatch)
    kind, folder, name = cifar
    archive = folder / kind.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / kind.base_folder, kind.base_folder)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(kind, "tgz_md5", md5 if whole else "0" * 32)
    shutil.rmtree(folder / kind.base_folder)
    data = ImageDataSettings(images=name, folder=str(folder))
    if whole:
        assert len(prepare(data).train) == IMAGES_A_FILE * len(kind.train_list)
        return
    with pytest.raises(UserError, match=rf"is damaged \(its MD5 is {md5}, not 0{{32}}\).*no network") as caught:
        prepare(data)
    assert f"{kind.filename} and put it into {folder}" in str(caught.value.hint)
    assert not (folder / kind.base_folder).exists()


def test_of_an_archive_of_cifar_only_its_own_files_are_written(
    cifar: tuple[Any, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every Python, whose own `extractall` differs: no links, nothing outside the folder."""
    kind, folder, name = cifar
    data = ImageDataSettings(images=name, folder=str(folder))
    before, base = prepare(data), folder / kind.base_folder
    files = {path.name for path in base.iterdir()}
    first, *_ = sorted(files)
    archive = folder / kind.filename
    with tarfile.open(archive, "w:gz") as tar:
        for outside in ("../outside", str(folder / "outside"), f"{base.name}/../outside", f"{base.name}/other"):
            member = tar.gettarinfo(base / first)
            member.name = outside
            with (base / first).open("rb") as content:
                tar.addfile(member, content)
        tar.add(base, kind.base_folder)
        link = tarfile.TarInfo(f"{kind.base_folder}/{first}")
        link.type, link.linkname = tarfile.SYMTYPE, str(folder / "elsewhere")
        tar.addfile(link)
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    shutil.rmtree(base)
    assert prepare(data).content_hash == before.content_hash
    assert {path.name for path in base.iterdir()} == files
    assert not any(path.is_symlink() for path in base.iterdir())
    assert {path.name for path in folder.iterdir()} == {archive.name, kind.base_folder}
    assert not (folder.parent / "outside").exists()


def make_imagenet(folder: Path, classes: int = 3) -> None:
    generator = np.random.default_rng(1)
    for part, images in (("train", 5), ("val", 2)):
        for label in range(classes):
            here = folder / part / f"n{label:08}"
            here.mkdir(parents=True)
            for number in range(images):
                shape = (40 + 7 * number, 61 - 5 * number, 3)
                smooth = np.linspace(0, 255, shape[0] * shape[1] * 3).reshape(shape) / 2 + generator.uniform(0, 60)
                image = Image.fromarray(smooth.astype(np.uint8))
                (image.convert("L") if number == 1 else image).save(here / f"{part}_{number}.JPEG")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ImageNet, "classes", {"imagenet": 3})
    make_imagenet(tmp_path / "imagenet")
    return tmp_path / "imagenet"


def settings(folder: Path, **changes: Any) -> ImageDataSettings:
    return ImageDataSettings(images="imagenet", size=24, folder=str(folder), **changes)


def test_imagenet_is_read_as_torchvision_would(folder: Path) -> None:
    from torchvision import transforms

    dataset = prepare(settings(folder, augmentation="resized-crop-flip"))
    assert (len(dataset.train), len(dataset.validation)) == (15, 6)
    assert list(dataset.class_names) == ["n00000000", "n00000001", "n00000002"]
    assert dataset.train.pixels is None
    look = transforms.Compose([transforms.Resize(round(24 * 256 / 224)), transforms.CenterCrop(24)])
    (batch,) = EvaluationBatches(dataset.validation, batch_size=6)
    assert batch.pixels is not None
    assert batch.draws is None
    for index, label, pixels in zip(batch.indices, batch.labels, batch.pixels, strict=True):
        path = Path(dataset.validation.files[index])  # type: ignore[attr-defined]
        assert path.parent.name == dataset.class_names[label]
        assert same_integers(pixels, np.asarray(look(Image.open(path).convert("RGB"))))


def test_runs_of_one_table_that_crop_and_that_do_not_are_read_apart(folder: Path) -> None:
    """What is opened is kept by its fingerprint, and what reads imagenet also cuts."""
    assert fingerprint(settings(folder, augmentation="resized-crop-flip")) != fingerprint(settings(folder))
    one, other = (ImageDataSettings(images="cifar10", augmentation=each) for each in ("none", "crop"))
    assert fingerprint(one) == fingerprint(other)


def test_the_content_of_a_folder_is_of_the_files_that_lie_there_now(folder: Path) -> None:
    """What was noted when it was prepared counts until a file comes, goes or changes its size; ImageNet scaled by
    somebody under the same names is other data."""
    data = settings(folder)
    noted = prepare(data).content_hash
    assert known_content(data, fingerprint(data)) == noted
    image = folder / "train" / "n00000001" / "train_0.JPEG"
    content = Image.open(image).resize((12, 12))
    image.unlink()
    assert known_content(data, fingerprint(data)) is None
    content.save(image)
    assert known_content(data, fingerprint(data)) is None
    scaled = prepare(data).content_hash
    assert known_content(data, fingerprint(data)) == scaled != noted
    shutil.rmtree(folder)
    assert known_content(data, fingerprint(data)) is None


def test_parts_of_imagenet_are_cut_by_the_draws(folder: Path) -> None:
    from torchvision.transforms import functional

    dataset = prepare(settings(folder, augmentation="resized-crop-flip"))
    with TrainBatches(dataset.train, seed=3, batch_size=8, micro_batch_size=3, first_step=1, last_step=2) as batches:
        (parts,) = list(batches)
    draws = uniform_draws(3, 8, 8, imagenet.DRAWS)
    assert_same_bits(np.concatenate([part.draws for part in parts]), draws, Reason.EXACT)
    cut = np.concatenate([part.pixels for part in parts])
    indices = np.concatenate([part.indices for part in parts])
    for index, row, pixels in zip(indices, draws, cut, strict=True):
        image = Image.open(dataset.train.files[index]).convert("RGB")  # type: ignore[attr-defined]
        left, top, right, bottom = imagenet.random_box(image.width, image.height, row)
        expected = functional.resized_crop(image, top, left, bottom - top, right - left, [24, 24])
        assert same_integers(pixels, np.asarray(expected))

    plain = prepare(settings(folder))
    batch = plain.train.train_batch(indices, 3, 8)
    assert same_integers(batch.pixels, plain.train.batch(indices).pixels)


def test_random_boxes_are_as_the_paper_draws_them() -> None:
    boxes = np.array([imagenet.random_box(400, 300, row) for row in uniform_draws(0, 0, 3000, imagenet.DRAWS)])
    left, top, right, bottom = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 400).all() and (bottom <= 300).all()  # noqa: PT018
    width, height = right - left, bottom - top
    area, aspect = width * height / 120_000, width / height
    assert 0.079 < area.min() < 0.1 and 0.9 < area.max() <= 1  # noqa: PT018
    assert 0.74 < aspect.min() < 0.77 and 1.30 < aspect.max() < 1.35  # noqa: PT018
    # Every aspect fits in a small part of the image: there no attempt is refused.
    assert np.median(np.log(aspect[area < 0.4])) == pytest.approx(0, abs=0.04)
    never = np.ones(imagenet.DRAWS) * (1 - 1e-12)  # ten times the whole area at 4 to 3, of an image of 10 to 1
    assert imagenet.random_box(1000, 100, never) == (433, 0, 566, 100)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "val").rename(folder / "test"), "val"),
        (lambda folder: (folder / "val" / "n00000000").rename(folder / "val" / "n9"), "n00000000 is in one only"),
        (lambda folder: (folder / "train" / "new").mkdir(), "new"),
        (lambda folder: make_imagenet(folder / "train" / "n00000003", 1), "4 folders of classes, not 3"),
    ],
)
def test_an_imagenet_folder_that_is_unfit(folder: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=f"imagenet is not in {folder}: .*{said}") as caught:
        prepare(settings(folder))
    assert "train/ and val/" in str(caught.value.hint)
    assert "--set data.folder=" in str(caught.value.hint)


def test_a_broken_image_is_named(folder: Path) -> None:
    (folder / "val" / "n00000000" / "val_0.JPEG").write_bytes(b"\xff\xd8 no image")
    dataset = prepare(settings(folder))
    with pytest.raises(UserError, match=r"cannot read the image .*n00000000/val_0\.JPEG"):
        list(EvaluationBatches(dataset.validation, batch_size=6))
