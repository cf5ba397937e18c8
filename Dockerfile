# Sluice with the TigerBeetle ledger, in an image that holds the binary and a configuration to start from, and no shell.
#
#   docker run sluice                        serves; mount your own over /etc/sluice, keep /var/lib/sluice in a volume
#   docker run --entrypoint /bin/ratelimit   in the place of envoyproxy/ratelimit: docs/envoy-gateway.md
#
# Labels and a list of what is inside (an SBOM in SPDX) come with the build:
#
#   docker buildx build --sbom=true --provenance=true --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .

FROM rust:1.95-slim-bookworm AS build
# python3-venv is for scripts/tools.sh, rustfmt for bindgen in the TigerBeetle client crate.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && rustup component add rustfmt
WORKDIR /src
# Zig and libclang first: they change seldom, so their layer stays.
COPY scripts scripts
RUN scripts/tools.sh build
COPY . .
RUN . .tools/env && cargo build --locked --profile dist --features tigerbeetle
# What the last stage has no shell to make: the second name, and a directory that its user may write.
RUN mkdir -p /image/bin /image/usr/local/bin /image/var/lib/sluice /image/etc \
 && cp target/dist/sluice /image/usr/local/bin/sluice \
 && ln -s /usr/local/bin/sluice /image/bin/ratelimit \
 && cp -r config /image/etc/sluice \
 && chown -R 65534:65534 /image/var/lib/sluice

# The C library, the certificates of public authorities, and nothing else.
FROM gcr.io/distroless/cc-debian12
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="Envoy's rate-limit service over a ledger" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/usr/local/bin/ /usr/local/bin/
# What is in the directory, so that the link stays a link.
COPY --from=build /image/bin/ /bin/
COPY --from=build /image/etc/sluice /etc/sluice
COPY --from=build --chown=65534:65534 /image/var/lib/sluice /var/lib/sluice
# A number, so that Kubernetes' runAsNonRoot can tell; nobody's, as Envoy Gateway has it.
USER 65534:65534
WORKDIR /var/lib/sluice
# gRPC is for other containers. Admin stays on loopback, which containers of a pod share: beyond that it wants a token, so set
# SLUICE_ADMIN=0.0.0.0:8080 together with SLUICE_ADMIN_TOKEN. `ratelimit` takes its limits and addresses from elsewhere.
ENV SLUICE_CONFIG_DIR=/etc/sluice SLUICE_STATE_DIR=/var/lib/sluice SLUICE_GRPC=0.0.0.0:8081
EXPOSE 8080 8081 8082
ENTRYPOINT ["sluice"]
CMD ["serve"]
