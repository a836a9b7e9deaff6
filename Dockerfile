# docker build --tag antiphon . && docker run --publish 127.0.0.1:8080:8080 --env ANTIPHON_ALLOW_OPEN=true antiphon
#
# With the sandbox for [tools.code_interpreter]; docs/tools.md lists the `docker run` options:
#
#   docker build --target sandbox --tag antiphon:sandbox .

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/antiphon
# The locked dependencies come first: they change less often than the code.
COPY docker/requirements.txt docker/build-requirements.txt ./
RUN /opt/antiphon/bin/pip install --require-hashes --requirement requirements.txt \
    && pip install --require-hashes --requirement build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY verify verify
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/antiphon/bin/pip install --no-deps dist/*.whl \
    && /opt/antiphon/bin/pip check \
    && /opt/antiphon/bin/pip uninstall --yes pip

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS runtime
LABEL org.opencontainers.image.title="Antiphon" \
      org.opencontainers.image.description="The Open Responses API, answered by any model server." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 antiphon \
    && useradd --system --uid 10001 --gid antiphon --no-create-home --shell /usr/sbin/nologin antiphon \
    && install --directory --owner antiphon --group antiphon /data
COPY --from=build /opt/antiphon /opt/antiphon
ENV PATH=/opt/antiphon/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ANTIPHON_HOST=0.0.0.0 \
    ANTIPHON_PORT=8080 \
    ANTIPHON_LOG_FORMAT=json
# The default place for SQLite files and `.env`.
WORKDIR /data
VOLUME /data
# A number, because Kubernetes cannot check `runAsNonRoot` by name.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as request; request.urlopen(f\"http://127.0.0.1:{os.environ['ANTIPHON_PORT']}/healthz\", timeout=2)"]
ENTRYPOINT ["antiphon"]
CMD ["serve"]

FROM runtime AS sandbox
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001

# Docker builds the last stage by default.
FROM runtime AS server
