# specprof as a client: it measures servers that run elsewhere (engine: {kind: attach}). No engine and no GPU inside.
#
#   docker build -t specprof --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" .
#   docker run --rm -v "$PWD:/study:ro" -v "$PWD/results:/results" specprof run /study/my-attach.yaml --results /results
FROM python:3.11-slim

WORKDIR /opt/specprof
COPY pyproject.toml hatch_build.py README.md CHANGELOG.md LICENSE ./
COPY specprof ./specprof
# Ready studies and suites: a study that names prompts/code.jsonl finds it here, in the working folder.
COPY configs ./configs
COPY prompts ./prompts
COPY examples ./examples
# There is no git in here: without the argument `specprof --version` says that the commit is unknown.
ARG COMMIT=""
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > specprof/commit.txt; fi \
    && pip install --no-cache-dir .

# The user of the container owns nothing but what is mounted at /results; caches of libraries go to /tmp.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin specprof \
    && install --directory --owner=specprof /results
ENV HOME=/tmp MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
USER 10001
VOLUME /results

ENTRYPOINT ["specprof"]
CMD ["--help"]
