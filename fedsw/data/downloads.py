"""Where the files of a data set are: a folder given, FEDSW_DATA, or a verified download."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

_downloads = ContextVar("downloads", default=True)


@contextmanager
def without_downloads() -> Iterator[None]:
    """Meanwhile, and in this thread, a data set is read where its files lie, and is never fetched."""
    before = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(before)


@dataclass(frozen=True)
class Source:
    """A downloadable data set: its files, each with its sha256, and subfolders that it is looked for in.

    Where it is ``ambiguous``, another has files of the same names: a folder counts if its path ends in a subfolder's.
    """

    url: str
    sha256: Mapping[str, str]
    folders: tuple[str, ...] = ()
    ambiguous: bool = False


DOWNLOADS: Mapping[str, Source] = {
    "adult": Source(
        url="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
        sha256={
            "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
    ),
    "mnist": Source(
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        sha256={
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        folders=("mnist", "MNIST/raw"),
        ambiguous=True,
    ),
    "fashion-mnist": Source(
        url="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        sha256={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
        ambiguous=True,
    ),
    "usps": Source(
        url="https://raw.githubusercontent.com/niuers/Learning-From-Data-A-Short-Course/"
        "35684e893b63bf4039bafcc6d34fe935851baf9a/data/",
        sha256={"usps.h5": "734f88c541104a956d88be2c95d03b4a463ffd74ccc2ba9c80841fb98e3fcb36"},
    ),
    "law-school": Source(
        url="https://raw.githubusercontent.com/TheRohanVerma/CMPUT622_FairSMOTE_vs_FairClassBal/"
        "9462529654d17583f0e2c98ccbc04478ae976d67/data/",
        sha256={"bar_pass_prediction.csv": "76ebfdb0427ce8db038d53fa5943180ac77096bffb8264f000ed21e9f0ec82f2"},
        folders=("law_school", "law-school"),
    ),
    "communities": Source(
        url="https://archive.ics.uci.edu/ml/machine-learning-databases/communities/",
        sha256={
            "communities.data": "d90d85bd66bad9a00fa0ed6c15ac017b5966d528e55ba2940ad028d071353f95",
            "communities.names": "80914f24ab37261fb0fbda7e417cad8001335dadda4a8d702c265601ef8434fc",
        },
    ),
}


def find_data(name: str, data_dir: str | Path | None = None) -> Path:
    """The folder that holds every file of a data set, downloading it if it was not said where it is.

    With `data_dir`, its subfolders of the data set's names (`Source.folders`) and that folder itself are
    searched, and nothing else. Without it, the same is done in the folder named by FEDSW_DATA; then the files
    are taken from the download cache, or downloaded into it. A downloaded file must have the sha256 on record;
    a file you put somewhere yourself is taken as it is, and one that ends in .gz may lie there unzipped. Inside
    `without_downloads` nothing is downloaded. ValueError if the data set is unknown, FileNotFoundError if its files are
    nowhere, with the folders searched and what can be done.
    """
    if name not in DOWNLOADS:
        raise ValueError(f"no data set {name!r} has files; known: {', '.join(DOWNLOADS)}")
    variable = os.environ.get("FEDSW_DATA")
    base = data_dir if data_dir is not None else variable
    searched = _places(name, Path(base)) if base else []
    wanted = DOWNLOADS[name].sha256
    for folder in searched:
        if all(stored(folder, file).is_file() for file in wanted):
            return folder
    if data_dir is not None:
        raise FileNotFoundError(
            f"{name}: {_files(wanted)} in {_listed(searched)}. Point --data-dir at "
            f"their folder, or leave it out to use FEDSW_DATA ({variable or 'not set'}) or a download from "
            f"{DOWNLOADS[name].url}"
        )
    return _download(name, searched, variable)


def stored(folder: Path, file: str) -> Path:
    """Path of a file in a folder, or of its unzipped form if only that is there."""
    unzipped = folder / file.removesuffix(".gz")
    return unzipped if unzipped.is_file() and not (folder / file).is_file() else folder / file


def _places(name: str, base: Path) -> list[Path]:
    source = DOWNLOADS[name]
    folders = source.folders or (name,)
    parts = base.resolve().parts
    named = any(parts[-len(Path(folder).parts) :] == Path(folder).parts for folder in folders)
    return [*(base / folder for folder in folders), *([base] if named or not source.ambiguous else [])]


def _download(name: str, searched: list[Path], variable: str | None) -> Path:
    import pooch  # for data sets with a name only: tables of one's own do without

    source = DOWNLOADS[name]
    folder = Path(pooch.os_cache("fedsw")) / name
    if not _downloads.get():
        paths = {folder / file: sha256 for file, sha256 in source.sha256.items()}
        if all(path.is_file() and pooch.file_hash(str(path), alg="sha256") == known for path, known in paths.items()):
            return folder
        raise FileNotFoundError(
            f"{name}: this client does not hold its files, and downloads nothing that a server names. Its operator "
            f"puts {' and '.join(source.sha256)} in a folder, and starts it with --data-dir, or with FEDSW_DATA set"
        )
    for file, sha256 in source.sha256.items():
        try:
            pooch.retrieve(
                source.url + file,
                known_hash=f"sha256:{sha256}",
                fname=file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
        except (OSError, ValueError) as fault:
            raise FileNotFoundError(
                f"{name}: {_files(source.sha256)} in {_listed([*searched, folder])}, "
                f"and the download of {source.url + file} failed: {_short(fault)}. Put the files in a folder "
                f"and name it with --data-dir or in FEDSW_DATA ({variable or 'not set'})"
            ) from fault
    return folder


def _files(wanted: Mapping[str, str]) -> str:
    return f"{' and '.join(wanted)} {'are not together' if len(wanted) > 1 else 'is not'}"


def _listed(folders: list[Path]) -> str:
    return " or ".join(str(folder) for folder in folders)


def _short(fault: Exception) -> str:
    text = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
    return text if len(text) <= 200 else text[:197] + "..."
