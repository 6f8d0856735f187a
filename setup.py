"""Packaging of fairseq_maelm: what it needs, its extras and its one command.

``scripts/setup.sh`` installs the slow dependencies first, because fairseq is built from source on most Pythons.
"""

import ast
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def read_version(path: Path) -> str:
    """Return the literal ``__version__`` of a module without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__version__" for name in node.targets):
            return str(ast.literal_eval(node.value))
    raise SystemExit(f"{path} does not assign a literal __version__")


INSTALL_REQUIRES = [
    # 2.6 is the first release whose torch.load refuses pickled code unless it is allowed by name.
    "torch>=2.6",
    # fairseq 0.12.2 cannot be imported by Python 3.11 and later; fairseq-fixed is the same package, mended.
    "fairseq-fixed>=0.12.3.1,<0.13",
    "numpy>=1.23.2,<3",
    # Recipes; fairseq brings both along.
    "omegaconf>=2.0.5,<2.4",
    "PyYAML>=5.1",
    # The reports of sweeps: intervals, tables.
    "tabulate>=0.9,<0.11",
    # The weights of the encoder that comes with the package.
    "safetensors>=0.4",
    # Metrics of sentences and intervals of reports.
    "scikit-learn>=1.2,<2",
    "scipy>=1.11,<2",
    "sentencepiece>=0.2,<0.3",
    "tqdm>=4.60,<5",
]

EXTRAS_REQUIRE = {
    "hf": ["tokenizers>=0.20", "transformers>=4.46", "protobuf>=4"],
    "onnx": ["onnx>=1.17", "onnxscript>=0.2", "onnxruntime>=1.20"],
    "sentence-transformers": ["sentence-transformers[train]>=5"],
    "plots": ["matplotlib>=3.8"],
    "slurm": ["submitit>=1.5,<2"],
    # For --tensorboard-logdir of fairseq-train.
    "tensorboard": ["tensorboardX>=2.6,<3"],
    # The documentation site: mkdocs build.
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.29,<2"],
    "dev": [
        "codespell>=2.4,<3",
        "hypothesis>=6.100,<7",
        # Scores sentences as `maelm score` is compared with.
        "minicons>=0.3.39,<0.4",
        "mypy>=1.13,<3",
        "pytest>=8,<10",
        "pytest-xdist>=3.6,<4",
        # Scores entities as ours are compared with.
        "seqeval>=1.2.2,<2",
        # Formatting and rules differ between ruff's minor versions; checks must not change under a developer's feet.
        "ruff>=0.17,<0.18",
        # Comes with torch's CUDA builds; without a GPU its interpreter runs the kernels' tests.
        'triton>=3.2,<4; platform_system == "Linux" and platform_machine == "x86_64"',
        "types-PyYAML",
        "types-tqdm",
    ],
}


def read_long_description() -> str:
    """Return the README as the page of the built package: without links and pictures that would lead nowhere there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\[(!\[[^]]*\]\(https://[^)]*\))\]\((?!https://)[^)]*\)", r"\1", text)
    text = re.sub(r"^!\[[^]]*\]\((?!https://)[^)]*\)\n+", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<!!)\[([^][]*)\]\((?!https://|#)[^)]*\)", r"\1", text)


setup(
    name="fairseq_maelm",
    version=read_version(ROOT / "fairseq_maelm" / "__init__.py"),
    description="MAE-LM pretraining of text encoders as a fairseq plugin: masked tokens never enter the encoder",
    long_description=read_long_description(),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The fairseq_maelm authors",
    project_urls={"Paper": "https://arxiv.org/abs/2302.02060"},
    keywords="masked language model, pretraining, text encoder, fairseq, MAE-LM, ModernBERT",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["fairseq_maelm", "fairseq_maelm.*"]),
    package_data={
        "fairseq_maelm": [
            *("py.typed", "finetuning/*/*.yaml", "recipes/*/*.yaml", "pretrained/*/*"),
            "interop/export/*.md",
        ]
    },
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={"console_scripts": ["maelm = fairseq_maelm.cli:command"]},
)
