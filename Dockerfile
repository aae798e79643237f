# docker build -t jaxinfer .                              a CPU image
# docker build -t jaxinfer --build-arg CUDA=cuda13 .      for NVIDIA drivers from 580 (cuda12 for older ones)
# docker run -p 8000:8000 -v jaxinfer-cache:/cache [--gpus all] jaxinfer serve Qwen/Qwen3-0.6B --host 0.0.0.0
FROM python:3.12-slim

ARG CUDA=""
WORKDIR /opt/jaxinfer
COPY requirements*.lock ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
    && if [ -n "$CUDA" ]; then pip install --no-cache-dir --no-deps --require-hashes -r "requirements-$CUDA.lock"; fi
COPY pyproject.toml README.md LICENSE ./
COPY jaxinfer jaxinfer
COPY kernels kernels
COPY configs configs
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

# Downloads and compiled steps outlive the container in this volume; the compile cache must be its user's own.
RUN useradd --create-home jaxinfer && install -d -o jaxinfer -m 700 /cache
ENV HF_HOME=/cache/huggingface XDG_CACHE_HOME=/cache PYTHONUNBUFFERED=1
VOLUME /cache
USER jaxinfer
EXPOSE 8000
ENTRYPOINT ["jaxinfer"]
CMD ["serve", "--host", "0.0.0.0"]
