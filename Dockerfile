# syntax=docker/dockerfile:1
#
#   docker build -t duewheel .
#   docker run --init -v duewheel-data:/var/lib/duewheel -e DUEWHEEL_TIMER__TOPICS=… duewheel
#
# The base image is named by its tag. For a release of your own pin its digest:
# --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:…
#
# Behind a mirror of the package registry: --secret id=pip,src=<your pip.conf>.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# ---- what builds stays in this stage ------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS build

# Sources lie in a folder `wheel`: Python must not find it under that name.
ENV PYTHONSAFEPATH=1 \
    PIP_CACHE_DIR=/var/cache/pip \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PATH=/opt/duewheel/bin:$PATH \
    DUEWHEEL_CACHE_DIR=/opt/duewheel-cache
RUN python -m venv /opt/duewheel

# Packages change seldom: this layer is rebuilt only with the lock files. Java is among them.
COPY requirements-build.txt requirements.txt requirements-jdk.txt /build/
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --require-hashes -r /build/requirements-build.txt && \
    pip install --require-hashes --no-build-isolation --use-pep517 \
        -r /build/requirements.txt -r /build/requirements-jdk.txt

COPY pyproject.toml setup.py README.md LICENSE /build/
COPY src /build/src
COPY checkpoints /build/checkpoints
COPY schemas /build/schemas
COPY streaming /build/streaming
COPY wheel /build/wheel
RUN pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /dist /build && \
    pip install --no-index --no-deps /dist/*.whl && \
    pip uninstall --yes setuptools pip

# What makes Spark accept this Java; and the archive of Spark's classes, without which ingest starts
# with half as much processor time again. It has 150 MB.
RUN python -m duewheel.java.find && \
    python -m duewheel.java.spark_archive && \
    ls /opt/duewheel/class-archives/spark-*.jsa

# ---- what runs ----------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE}

RUN groupadd --system --gid 10001 duewheel && \
    useradd --system --uid 10001 --gid 10001 --create-home --home-dir /var/lib/duewheel duewheel
COPY --from=build /opt/duewheel /opt/duewheel
COPY --from=build /opt/duewheel-cache /opt/duewheel-cache

ENV PYTHONSAFEPATH=1 \
    PATH=/opt/duewheel/bin:$PATH \
    DUEWHEEL_CACHE_DIR=/opt/duewheel-cache \
    DUEWHEEL_STORAGE__DATA_DIR=/var/lib/duewheel/data
# By number: Kubernetes cannot tell of a name that it is not root (runAsNonRoot).
USER 10001
WORKDIR /var/lib/duewheel
VOLUME /var/lib/duewheel

HEALTHCHECK --interval=30s --timeout=20s --start-period=120s --retries=3 \
    CMD ["duewheel", "health"]
ENTRYPOINT ["duewheel"]
CMD ["run"]
