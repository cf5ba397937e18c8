# Sluice with the TigerBeetle ledger, in an image that holds the binary and a configuration to start from, and no shell.
#
#   docker run sluice                        serves; mount your own over /etc/sluice, keep /var/lib/sluice in a volume
#   docker run --entrypoint /bin/ratelimit   in the place of envoyproxy/ratelimit: docs/envoy-gateway.md
#
# It needs to write nothing but /var/lib/sluice, and starts without that too: the root can be read-only.
#
# scripts/release.sh builds it with the labels of a release, and writes down the digests of both base images: the same digests,
# commit and SOURCE_DATE_EPOCH give the same image again. Digests are not written here, because they would keep the base from getting
# its security updates; give one to fix it:
#
#   docker buildx build --build-arg BASE_IMAGE=gcr.io/distroless/cc-debian12@sha256:… \
#     --build-arg VERSION=0.1.0 --build-arg REVISION=$(git rev-parse HEAD) --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) .

ARG RUST_IMAGE=rust:1.95-slim-bookworm
# The C library, the certificates of public authorities, and nothing else. Of the same Debian as the image above.
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12

FROM ${RUST_IMAGE} AS build
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
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
RUN SLUICE_REVISION="$REVISION" scripts/dist.sh && scripts/image-root.sh target/dist/sluice /image

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=https://github.com/example/sluice
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="Envoy's rate-limit service over a ledger" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
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
