"""Run the tests of engines with the versions of diffusers that engines pin: `make engines`.

Each version has an environment of its own below `build`, which takes from the project's environment
whatever it does not bring along itself, torch above all. vLLM-Omni's package is unpacked beside
them and never installed, since it needs CUDA.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
# diffusers -> what the engine that pins it asks for besides
VERSIONS = {
    "0.37.0": ("transformers==5.19.0",),  # sglang 0.5.23
    "0.40.0": ("transformers>=5.13,<5.15",),  # vllm-omni 0.30.0
}
VLLM_OMNI = "vllm-omni==0.30.0"


def environment(version: str) -> Path:
    """The Python of an environment with this version of diffusers, made where it is not there."""
    folder = BUILD / f"engines-{version}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = folder / ".done"
    if not done.exists():
        run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
        shared = sysconfig.get_paths()["purelib"]
        path = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        own = Path(subprocess.check_output([python, "-c", path], text=True).strip())
        (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        run(python, "-m", "pip", "install", "-q", f"diffusers=={version}", *VERSIONS[version])
        done.touch()
    return python


def vllm_omni() -> Path:
    """The folder into which vLLM-Omni's wheel is unpacked."""
    folder = BUILD / "engines-vllm-omni"
    if not folder.exists():
        wheels = BUILD / "engines-wheels"
        run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, VLLM_OMNI)
        with zipfile.ZipFile(next(wheels.glob("vllm_omni-*.whl"))) as wheel:
            wheel.extractall(folder)
    return folder


def run(*command: object, **variables: str) -> int:
    """Run a command; stop where it fails."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, env=os.environ | variables, check=True).returncode


def main() -> None:
    """Test one version after the other."""
    BUILD.mkdir(exist_ok=True)
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    real = {"PYTHONPATH": source, "VLLM_OMNI_PATH": str(vllm_omni())}
    for version in VERSIONS:
        python = environment(version)
        print(f"diffusers {version}", flush=True)
        run(python, "-m", "pytest", "-q", "tests/engines", **real)


if __name__ == "__main__":
    main()
