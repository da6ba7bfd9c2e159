# Three images. Each contains one program, its Python interpreter and the libraries that they load: no shell, no package
# manager, no compiler. The servers' images have no torch.
#
#   docker build --target server-cpu -t attendant .
#   docker build --target server-gpu -t attendant:gpu .
#   docker build --target trainer -t attendant:trainer .
#
#   docker run --read-only -p 50051:50051 -p 9090:9090 -v ./bundles/g2p-cmudict-small:/bundle:ro attendant
#   docker run --read-only --gpus all -v ... attendant:gpu
#   docker run --user $(id -u) -v .:/work attendant:trainer train recipes/mine.toml
#
# To ship a bundle inside an image: FROM attendant, COPY my-bundle /bundle.

# Debian 12 with Python 3.11, of which only libraries and the interpreter go into the images. --build-arg BASE=... selects
# another base, which must have python3 with venv, and dpkg.
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
# The time of every file in the images; `make image` sets the commit's.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/attendant
# Exact versions with their hashes (`make locks`). `tokenizers` is installed without its own dependencies: the server
# loads tokenizer files and never connects to a model hub.
COPY deploy/locks ./locks
RUN /opt/build/bin/pip install --no-deps --require-hashes --requirement locks/build.txt
COPY deploy/image.py pyproject.toml setup.py README.md LICENSE ./
# Not in the folder of a checkout, so that the server's metadata require the client by its version (setup.py).
COPY client ./client-distribution
COPY client/attendant_client/version.py ./client/attendant_client/
COPY attendant ./attendant
COPY runtime ./runtime
COPY server ./server
# `attendant verify`, `inspect` and `evaluate` run in the servers' images too.
COPY training ./training
COPY export ./export
COPY recipes ./recipes
# The commit that runs and bundles record if they are made in the trainer's image; `make image` sets the checkout's.
ARG COMMIT=unknown
RUN echo "${COMMIT}" > runtime/commit.txt

FROM build AS root-cpu
# --build-arg LOCKS="server-cpu signing" adds the packages for --require-signature; "server-cpu otel" those for --traces.
ARG LOCKS=server-cpu
# hadolint ignore=SC2086
RUN /opt/build/bin/python image.py $LOCKS --environment /opt/attendant --root /image --folders bundle empty

FROM build AS root-gpu
RUN /opt/build/bin/python image.py server-gpu --environment /opt/attendant --root /image --folders bundle empty

FROM build AS root-trainer
RUN /opt/build/bin/python image.py server-cpu training --environment /opt/attendant --root /image --folders work

FROM scratch AS any
ARG VERSION
LABEL org.opencontainers.image.title="attendant" \
      org.opencontainers.image.description="Attention sequence-to-sequence models, trained, exported to ONNX and served" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/attendant/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
STOPSIGNAL SIGTERM

FROM any AS trainer
COPY --from=root-trainer /image /
ENV HOME=/tmp
WORKDIR /work
HEALTHCHECK NONE
ENTRYPOINT ["attendant"]
CMD ["--help"]

FROM any AS server
# All interfaces of the container; -p decides which ports the host opens.
ENV ATTENDANT_HOST=0.0.0.0 ATTENDANT_BUNDLES=/bundle
EXPOSE 50051 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["attendant", "health", "--target", "127.0.0.1:50051", "--timeout", "3"]
ENTRYPOINT ["attendant", "serve"]

FROM server AS server-gpu
COPY --from=root-gpu /image /
WORKDIR /empty
ENV ATTENDANT_PROVIDER=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The last stage is the default of a build without --target.
FROM server AS server-cpu
COPY --from=root-cpu /image /
# An empty folder that belongs to root: no relative path leads to a file. It comes with the files, because one that is made
# here would have the time of the build.
WORKDIR /empty
