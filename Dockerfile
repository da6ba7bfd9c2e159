# The server alone: no torch, no training, no compiler.
#
#   docker build --target cpu -t attendant .             docker build --target gpu -t attendant:gpu .
#   docker run -p 50051:50051 -p 9090:9090 -v ./bundles/g2p-cmudict-small:/bundle:ro attendant
#   docker run --gpus all -e ATTENDANT_PROVIDER=cuda ...                attendant:gpu
#
# To ship a bundle inside an image: FROM attendant, COPY my-bundle /bundle.

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS wheels
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/build
COPY deploy/locks/build.txt ./
RUN /opt/build/bin/pip install --no-deps --require-hashes --requirement build.txt
COPY pyproject.toml README.md LICENSE ./
COPY client ./client
COPY attendant ./attendant
COPY runtime ./runtime
COPY server ./server
# Our own packages are built from here, by what was installed above: their names are never looked up anywhere.
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels ./client .

FROM python:${PYTHON_VERSION}-slim-bookworm AS install-cpu
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/attendant
ENV PATH=/opt/attendant/bin:$PATH
# Exact versions with their hashes (`make locks`). `tokenizers` stands there without its own dependencies: the server
# loads tokenizer files and never talks to a model hub. --build-arg LOCKS="server-cpu signing" for --require-signature.
ARG LOCKS=server-cpu
COPY deploy/locks ./locks
RUN for lock in $LOCKS; do pip install --no-deps --require-hashes --requirement locks/$lock.txt || exit 1; done
COPY --from=wheels /wheels /wheels
RUN pip install --no-deps --no-index /wheels/*.whl

# CUDA's wheels are several gigabytes of another index's versions, and have no lock: those of constraints.txt.
FROM install-cpu AS install-gpu
COPY constraints.txt ./
# hadolint ignore=DL3013
RUN pip uninstall --yes onnxruntime && pip install --constraint constraints.txt "onnxruntime-gpu[cuda,cudnn]"

FROM python:${PYTHON_VERSION}-slim-bookworm AS base
LABEL org.opencontainers.image.title="attendant" \
      org.opencontainers.image.licenses="Apache-2.0"
# In a container the interfaces are the container's own.
ENV PATH=/opt/attendant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ATTENDANT_HOST=0.0.0.0 \
    ATTENDANT_BUNDLES=/bundle
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
# What is installed is `attendant.server`; this folder makes `python -m server` its name here, as in a checkout.
WORKDIR /srv/attendant
COPY server/__init__.py server/__main__.py ./server/
EXPOSE 50051 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["attendant", "health", "--target", "127.0.0.1:50051", "--timeout", "3"]
ENTRYPOINT ["python", "-m", "server"]

FROM base AS gpu
COPY --from=install-gpu /opt/attendant /opt/attendant
ENV ATTENDANT_PROVIDER=cuda

# Last, so that a build without --target makes it.
FROM base AS cpu
COPY --from=install-cpu /opt/attendant /opt/attendant
