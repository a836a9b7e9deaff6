# docker build --tag antiphon . && docker run --publish 127.0.0.1:8080:8080 --env ANTIPHON_ALLOW_OPEN=true antiphon

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/antiphon
# The locked dependencies come first: they change less often than the code.
COPY docker/requirements.txt .
RUN /opt/antiphon/bin/pip install --require-hashes --requirement requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY app app
RUN pip wheel --no-deps --wheel-dir dist . \
    && /opt/antiphon/bin/pip install --no-deps dist/*.whl \
    && /opt/antiphon/bin/pip check \
    && /opt/antiphon/bin/pip uninstall --yes pip

FROM python:3.13-slim
LABEL org.opencontainers.image.title="Antiphon" \
      org.opencontainers.image.description="The Open Responses API, answered by any Chat Completions backend." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin antiphon \
    && install --directory --owner antiphon --group antiphon /data
COPY --from=build /opt/antiphon /opt/antiphon
ENV PATH=/opt/antiphon/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ANTIPHON_HOST=0.0.0.0 \
    ANTIPHON_PORT=8080 \
    ANTIPHON_LOG_FORMAT=json
# A file of SQLite and a `.env` are looked for here.
WORKDIR /data
VOLUME /data
USER antiphon
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as request; request.urlopen(f\"http://127.0.0.1:{os.environ['ANTIPHON_PORT']}/healthz\", timeout=2)"]
ENTRYPOINT ["antiphon"]
CMD ["serve"]
