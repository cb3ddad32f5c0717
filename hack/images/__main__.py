"""`make images`, `make application`, `make load` and `make push`: an image per architecture, below dist/."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import topowise
from images import application, engines
from images.application import REPOSITORY, ImageError

DIST: Final = REPOSITORY / "dist"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    build.add_argument("--architecture", action="append", choices=sorted(application.MACHINES))
    build.add_argument("--base", default="", help="the base image, preferably by digest")
    for verb in (build, *map(verbs.add_parser, ("load", "push", "sign"))):
        verb.add_argument("--repository", default="ghcr.io/topowise/topowise", help="the image's name without the tag")
    verbs.add_parser("check", help="assembles the application of each architecture, without a container engine")
    verbs.choices["load"].add_argument("--into", default="", choices=["", *engines.CLUSTERS])
    verbs.choices["load"].add_argument("--cluster", default="", help="the cluster's name in kind")
    args = parser.parse_args(arguments)
    try:
        _do(args)
    except ImageError as exc:
        print(f"images: {exc}", file=sys.stderr)
        return 1
    return 0


def _do(args: argparse.Namespace) -> None:
    if args.verb == "check":
        for architecture in application.MACHINES:
            _check(architecture)
        return
    # The tag is the version, because that is what the chart asks for.
    name = f"{args.repository}:{topowise.__version__}"
    if args.verb == "build":
        for architecture in args.architecture or [engines.architecture()]:
            _build(architecture, args.base, name)
    elif args.verb == "load":
        engines.load(archive(engines.architecture()), args.into, args.cluster)
    elif args.verb == "push":
        _push(name)
    else:
        _sign(args.repository)


def archive(architecture: str) -> Path:
    """Returns the archive of the architecture's image."""
    return DIST / f"topowise-{architecture}.tar"


def _check(architecture: str) -> None:
    """What of an image can be checked without a container engine: its size, and on its own architecture its start."""
    folder = DIST / f"image-{architecture}"
    megabytes = application.assemble(architecture, folder)
    is_started = architecture == engines.architecture()
    if is_started:
        application.check_start(folder)
    how = "every library loads and every program starts" if is_started else "not started on this machine"
    print(f"images: {folder}: {megabytes:.0f} MB, {application.MOST} at most; {how}")


def _build(architecture: str, base: str, name: str) -> None:
    engine = engines.find()
    on = engines.base(engine, base, architecture)
    folder = DIST / f"image-{architecture}"
    megabytes = application.assemble(architecture, folder)
    created = _commit("%cI") or datetime.now(UTC).isoformat(timespec="seconds")
    named = {"BASE": on, "VERSION": topowise.__version__, "REVISION": _commit("%H") or "unknown", "CREATED": created}
    arguments = [f"--build-arg={key}={value}" for key, value in named.items()]
    file = f"--file={REPOSITORY / 'hack/images/Dockerfile'}"
    engine.run(
        "build", f"--platform=linux/{architecture}", file, *arguments, f"--tag={name}-{architecture}", str(folder)
    )
    digest = _save(engine, f"{name}-{architecture}", name, archive(architecture))
    (DIST / f"topowise-{architecture}.digest").write_text(f"{digest}\n")
    print(
        f"images: {archive(architecture)}: {name} for {architecture} on {on}, {megabytes:.0f} MB of its own, {digest}"
    )


def _save(engine: engines.Engine, stored: str, name: str, path: Path) -> str:
    """Writes the archive under the name that the chart asks for, and gives the digest of the image's configuration."""
    # The rename makes the archive visible only once it is complete.
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    if engine.name == "buildah":
        engine.run("push", stored, f"docker-archive:{part}:{name}")
    else:
        engine.run("tag", stored, name)
        engine.run("save", "--output", str(part), name)
    part.replace(path)
    form = "{{.FromImageID}}" if engine.name == "buildah" else "{{.Id}}"
    digest = engine.run("inspect", "--type=image", f"--format={form}", stored)
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"


def _push(name: str) -> None:
    """Pushes all built architectures as an image index. Its digest is what `make sign` signs."""
    engine = engines.find()
    if engine.name == "docker":
        raise ImageError("docker cannot push images of several architectures; use buildah or podman")
    built = [architecture for architecture in application.MACHINES if engine.has(f"{name}-{architecture}")]
    if not built:
        raise ImageError(f"no image of {name} is built; run make images first")
    listing = _listing(engine, name, built)
    digest = DIST / "topowise.digest"
    engine.run("manifest", "push", "--all", f"--digestfile={digest}", listing, f"docker://{name}")
    print(f"images: {name} for {', '.join(built)} is {digest.read_text().strip()}")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a") as file:
            file.write(f"digest={digest.read_text().strip()}\n")


def _listing(engine: engines.Engine, name: str, built: list[str]) -> str:
    """Creates the manifest list of all architectures, in place of a list that an earlier push has left."""
    listing = f"{name}-all"
    if engine.has(listing):
        engine.run("manifest", "rm", listing)
    engine.run("manifest", "create", listing)
    for architecture in built:
        engine.run("manifest", "add", listing, f"{name}-{architecture}")
    return listing


def _sign(repository: str) -> None:
    """Signs by digest, because a tag may move. In a workflow, cosign signs as that workflow, without a key."""
    digest = DIST / "topowise.digest"
    if not digest.exists():
        raise ImageError(f"{digest} does not exist; run make push first")
    try:
        subprocess.run(["cosign", "sign", "--yes", f"{repository}@{digest.read_text().strip()}"], check=True)
    except FileNotFoundError:
        raise ImageError("cosign is not installed, nothing is signed; install cosign") from None
    except subprocess.CalledProcessError as exc:
        raise ImageError(f"cosign failed with {exc.returncode}, see above") from None


def _commit(form: str) -> str:
    """Returns the checkout's commit, "" outside of a checkout."""
    command = ["git", "-C", str(REPOSITORY), "log", "-1", f"--format={form}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
