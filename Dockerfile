# The server alone: no torch, no training, no compiler.
#
#   docker build --target cpu -t attendant .             docker build --target gpu -t attendant:gpu .
#   docker run -p 50051:50051 -p 9090:9090 -v ./bundles/g2p-cmudict-small:/bundle:ro attendant
#   docker run --gpus all -e ATTENDANT_PROVIDER=cuda ...                attendant:gpu
#
# To ship a bundle inside an image: FROM attendant, COPY my-bundle /bundle.

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS install
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/build/constraints.txt
RUN python -m venv /opt/attendant
ENV PATH=/opt/attendant/bin:$PATH
COPY constraints.txt pyproject.toml README.md LICENSE ./
# The dependencies first, so that a change of the code does not fetch them again. `tokenizers` without its own: the
# server loads tokenizer files and never talks to a model hub. Versions are those of constraints.txt (PIP_CONSTRAINT).
# hadolint ignore=DL3013
RUN python -c "import tomllib; print(*[d for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] if not d.startswith(('tokenizers', 'attendant-client'))], sep='\n')" > requirements.txt \
 && pip install --requirement requirements.txt \
 && pip install --no-deps tokenizers
COPY client ./client
COPY attendant ./attendant
COPY runtime ./runtime
COPY server ./server
# hadolint ignore=DL3013
RUN pip install ./client && pip install --no-deps .

FROM install AS install-cpu
# hadolint ignore=DL3013
RUN pip install onnxruntime

FROM install AS install-gpu
# hadolint ignore=DL3013
RUN pip install "onnxruntime-gpu[cuda,cudnn]"

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
