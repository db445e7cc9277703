"""`make demo`: starts everything, shows it, cleans up. See `story` for what is shown.

Exit code 0 if all of this succeeded, else 1: every claim was Bound; one claim grew, got a snapshot,
was restored and attached; the volume of a deleted claim was deleted; and after a worker was killed,
another worker finished its claims. A demo that was killed itself is continued by the next one: the
claims, volumes and names are the same, and the steps are not repeated.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from examples.demo import life, place, story
from examples.demo.screen import Screen
from examples.demo.stack import Stack
from tests.support.go_build import GoBuildError
from tests.support.kube_api import KubeApi


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster instead of an own one")
    parser.add_argument("--exit", action="store_true", help="run once, do not wait for Ctrl-C")
    options = parser.parse_args()
    if options.kubeconfig and not os.access(options.kubeconfig, os.R_OK):
        parser.error(f"--kubeconfig {options.kubeconfig}: no such file, or not to be read")
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        signal.signal(number, _interrupt)
    screen = Screen()
    given = options.kubeconfig.resolve() if options.kubeconfig else None
    here = place.take(given)
    directory = here.directory
    if here.is_continued:
        screen.say(f"continuing the demo in {directory}, which was killed")
    stack = Stack(directory, given, here.tag, screen.say)
    code = 1
    try:
        run(stack, screen, once=options.exit, is_own_cluster=given is None)
        code = 0
    except KeyboardInterrupt:
        code = 1 if options.exit else 0
    except (story.DemoFailedError, GoBuildError, RuntimeError, OSError, TimeoutError) as error:
        screen.say(f"demo failed: {error}")
    finally:
        screen.say("stopping everything")
        stack.stop()
        here.release()
        if code == 0:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            screen.say(f"logs: {directory / 'logs'}")
    return code


def run(stack: Stack, screen: Screen, *, once: bool, is_own_cluster: bool) -> None:
    """Start the stack and run the steps of the demo on it."""
    stack.start_cluster()
    stack.start_drivers()
    with KubeApi(stack.kubeconfig) as api:
        scene = story.Scene(api, stack, screen)
        story.prepare(scene)
        if is_own_cluster:
            life.prepare(scene)
        try:
            stack.start_fleet()
            with screen:
                if api.items(scene.claims_path):
                    story.show_what_was_left(scene)
                else:
                    tell(scene, is_own_cluster=is_own_cluster)
                screen.say(f"in a browser: {stack.flower_url}/fleet  login {stack.flower_login}")
                if not once:
                    invite(stack, screen)
                    story.keep_showing(scene)
        finally:
            if not is_own_cluster:
                story.clean_up(scene)


def tell(scene: story.Scene, *, is_own_cluster: bool) -> None:
    """Show the steps of the demo."""
    story.create_claims(scene)
    story.show_binding(scene)
    life.show_growth(scene)
    if is_own_cluster:  # in a user's cluster we create no node and install no API
        life.show_snapshot(scene)
        life.show_attachment(scene)
    story.show_deletion(scene)
    story.show_takeover(scene)
    story.show_failure(scene)


def invite(stack: Stack, screen: Screen) -> None:
    """Print what a user can try next: explain, repair and break something."""
    stack.write_environment()
    claim = f"{stack.namespace}/{story.BROKEN}"
    secret = f"create secret generic {story.SECRET} --from-literal=password=x"
    for line in (
        f"in another terminal, once: . {stack.env_file}",
        f"  ask:    csi-fleet status    csi-fleet pending    csi-fleet explain pvc {claim}",
        f"  repair: kubectl -n {stack.namespace} {secret}",
        "  break:  demo_kill worker-1    (or worker-2, watcher, redis, alpha, beta, beat)",
        "docs/tutorials/break-it.md walks through it",
        "Ctrl-C ends the demo and removes all of it",
    ):
        screen.say(line)


def _interrupt(number: int, frame: object) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
