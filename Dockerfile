# docker build -t jaxinfer .                              a CPU image
# docker build -t jaxinfer --build-arg CUDA=cuda13 .      for NVIDIA drivers from 580 (cuda12 for older ones)
# docker run -p 8000:8000 -v jaxinfer-cache:/cache [--gpus all] jaxinfer serve Qwen/Qwen3-0.6B --host 0.0.0.0
FROM python:3.12-slim

ARG CUDA=""
WORKDIR /opt/jaxinfer
# Without scipy, tensorstore and orbax, which jax and flax ask for and nothing here imports: scripts/lock
COPY requirements*.lock ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements-runtime.lock \
    && if [ -n "$CUDA" ]; then pip install --no-cache-dir --no-deps --require-hashes -r "requirements-$CUDA.lock"; fi
COPY pyproject.toml README.md LICENSE ./
COPY jaxinfer jaxinfer
COPY kernels kernels
COPY configs configs
COPY docs/notebooks docs/notebooks
COPY scripts/compile_cpu.py scripts/
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

# Downloads and compiled steps outlive the container in this volume; the compile cache must be its user's own.
RUN useradd --uid 10001 --create-home jaxinfer && install -d -o 10001 -m 700 /cache
ENV HF_HOME=/cache/huggingface XDG_CACHE_HOME=/cache PYTHONUNBUFFERED=1
VOLUME /cache
USER 10001
EXPOSE 8000
# Ready is another question: GET /ready, for whoever sends it traffic.
HEALTHCHECK --start-period=10m --interval=15s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/live', timeout=4)"]
ENTRYPOINT ["jaxinfer"]
CMD ["serve", "--host", "0.0.0.0"]
