# One image for all commands of csi-fleet: watcher, worker, beat, flower, run and the tools.
#
#   docker build -t csi-fleet .
#   docker run --rm csi-fleet --help
#
# Packages come from requirements.lock only, each checked against its hash; the last stage holds
# no compiler, no package index and no test. Nothing is written outside mounts, so the root file
# system may be read-only. Another base: --build-arg BASE=... (Python >= 3.11).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# The lock serves development too. Fetching all of it checks every hash; installing from that
# folder alone takes only what the product needs, in exactly the locked versions.
COPY requirements.lock ./
RUN python3 -m venv /opt/csi-fleet \
 && /opt/csi-fleet/bin/pip download --quiet --require-hashes --no-deps --only-binary=:all: \
      --dest /wheels --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY csi_client csi_client
COPY workers workers
COPY watcher watcher
# Files in the wheel carry this time, so that the same source gives the same wheel.
ARG SOURCE_DATE_EPOCH=1704067200
# embedded: a Redis for the drop-in without one. Another set: --build-arg EXTRAS=embedded,tracing
ARG EXTRAS=embedded
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --quiet --no-index --find-links /wheels hatchling \
 && SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} /opt/build/bin/pip wheel --quiet --no-deps --no-index \
      --no-build-isolation --wheel-dir /wheels . \
 && /opt/csi-fleet/bin/pip install --quiet --no-compile --no-index --find-links /wheels "csi-fleet[${EXTRAS}]" \
 && /opt/csi-fleet/bin/pip check \
 && /opt/csi-fleet/bin/pip uninstall --quiet --yes pip setuptools
# Small: no second, asynchronous copy of the Kubernetes client (41 MB), and bytecode only of what
# the commands load, in part later than with their module. It carries no time, so that the same wheels give the same files.
WORKDIR /opt/csi-fleet
RUN rm -rf lib/python3*/site-packages/kubernetes/aio \
 && find . -name __pycache__ -prune -exec rm -r {} + \
 && bin/python3 -B -c "import py_compile as p, sys; \
import flower.command, watcher.__main__, workers.cli.beat, workers.cli.flower, workers.cli.worker; \
files = [getattr(one, '__file__', None) or '' for one in list(sys.modules.values())]; \
[p.compile(one, doraise=True, invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH) \
 for one in files if one.startswith(sys.prefix) and one.endswith('.py')]" \
 && bin/python3 -B -m compileall -q --invalidation-mode unchecked-hash \
      lib/python3*/site-packages/workers lib/python3*/site-packages/watcher \
      lib/python3*/site-packages/csi_client \
      lib/python3*/site-packages/celery/worker lib/python3*/site-packages/celery/concurrency \
      lib/python3*/site-packages/kubernetes/config lib/python3*/site-packages/kubernetes/utils \
      lib/python3*/site-packages/kubernetes/client/*.py

FROM ${BASE} AS product
LABEL org.opencontainers.image.title="csi-fleet" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can prove runAsNonRoot. The folders give fresh volumes their owner.
RUN groupadd --gid 10001 csi-fleet \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
      --shell /usr/sbin/nologin csi-fleet \
 && install -d -o 10001 -g 10001 -m 0750 /run/csi /run/csi-fleet /var/lib/csi-fleet
# The gateway of `csi-fleet adopt --as central`.
RUN command -v haproxy > /dev/null || { apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log; }
COPY --from=build /opt/csi-fleet /opt/csi-fleet
# Manifests that name a sidecar's program find it.
RUN for program in csi-provisioner csi-attacher csi-resizer csi-snapshotter snapshot-controller \
      volume-data-source-validator csi-external-health-monitor-controller livenessprobe csi-node-driver-registrar; do \
      ln -s /opt/csi-fleet/bin/csi-fleet "/$program"; done
ENV PATH=/opt/csi-fleet/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CSI_FLEET_STATE_DIR=/run/csi-fleet
USER 10001:10001
WORKDIR /run/csi-fleet
EXPOSE 8080 5555
# For containers started by hand; compose.yaml and k8s/ name a probe for each command.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["csi-fleet"]
CMD ["--help"]

# In place of the other sidecars, where a chart can change nothing but an image's name:
# docker build --target csi-attacher. Bare arguments of the image itself are csi-provisioner's.
FROM product AS csi-provisioner
ENTRYPOINT ["csi-fleet", "csi-provisioner"]
FROM product AS csi-attacher
ENTRYPOINT ["csi-fleet", "csi-attacher"]
FROM product AS csi-resizer
ENTRYPOINT ["csi-fleet", "csi-resizer"]
FROM product AS csi-snapshotter
ENTRYPOINT ["csi-fleet", "csi-snapshotter"]
FROM product AS snapshot-controller
ENTRYPOINT ["csi-fleet", "snapshot-controller"]
FROM product AS volume-data-source-validator
ENTRYPOINT ["csi-fleet", "volume-data-source-validator"]
FROM product AS csi-external-health-monitor-controller
ENTRYPOINT ["csi-fleet", "csi-external-health-monitor-controller"]
FROM product AS livenessprobe
ENTRYPOINT ["csi-fleet", "livenessprobe"]
FROM product AS csi-node-driver-registrar
ENTRYPOINT ["csi-fleet", "csi-node-driver-registrar"]

# The example driver of compose.yaml and k8s/overlays/dev: docker build --target example.
FROM product AS example
COPY examples/__init__.py /opt/example/examples/
COPY examples/directory_driver /opt/example/examples/directory_driver
ENV PYTHONPATH=/opt/example
HEALTHCHECK NONE
ENTRYPOINT ["python3", "-m", "examples.directory_driver"]

FROM product
