#!/usr/bin/env bash
# Makes what a release consists of, from a tag that is checked out, into target/release-<tag>: the program with its license in an
# archive, the list of what is inside it (an SBOM in CycloneDX), the chart, the notes out of CHANGELOG.md, and their checksums.
# Nothing in it depends on who makes it, where and when. Publishes nothing.
#
# usage: release.sh TAG            all of it: check, build, sbom, chart, archive, notes, sums
#        release.sh TAG STEP…      only these steps
#        release.sh TAG image      the container image, with Docker's buildx: into image.tar, and the digests of its bases beside it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "release: $*" >&2
    exit 1
}

tag=${1-}
[[ $tag =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$ ]] || fail "the tag must be a version, as in v0.1.0, not '$tag'"
version=${tag#v}
out=${SLUICE_RELEASE_DIR:-target/release-$tag}
name=sluice-$version-$(uname -m)-linux-gnu
mkdir -p "$out"

# Of the commit, so that the date of the making is nowhere.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$tag^{commit}" 2>/dev/null) || fail "there is no tag $tag"
export SOURCE_DATE_EPOCH
revision=$(git rev-parse "$tag^{commit}")

# A tar archive in which nothing depends on who made it and when.
pack() {
    tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu "$@" | gzip --no-name -9
}

# The tag is what is here, and everything that names a version names this one.
step_check() {
    [[ $(git rev-parse HEAD) == "$revision" ]] || fail "$tag is not what is checked out: git checkout $tag"
    [[ -z $(git status --porcelain) ]] || fail "there are changes that $tag doesn't have: git status"
    local stated
    stated=$(sed -n '0,/^version = "\(.*\)"$/s//\1/p' Cargo.toml)
    [[ $stated == "$version" ]] || fail "Cargo.toml has the version $stated, not $version"
    grep -q "^ARG VERSION=$version\$" Dockerfile || fail "the Dockerfile has another VERSION than $version"
    grep -Eq "^version: \"?$version\"?\$" deploy/chart/Chart.yaml &&
        grep -Eq "^appVersion: \"?$version\"?\$" deploy/chart/Chart.yaml ||
        fail "deploy/chart/Chart.yaml has another version or appVersion than $version"
    notes >/dev/null
}

step_build() {
    SLUICE_REVISION=$revision scripts/dist.sh
    install -m 755 "${CARGO_TARGET_DIR:-target}/dist/sluice" "$out/sluice"
}

step_sbom() {
    scripts/tools.sh sbom
    # What is linked into the program, and not what only builds it. It writes beside Cargo.toml.
    .tools/bin/cargo-cyclonedx cyclonedx --format json --features tigerbeetle --no-build-deps --target "$(uname -m)-unknown-linux-gnu" \
        --override-filename sluice-release --quiet
    # Sluice itself is named by where it lies.
    sed "s|file://$PWD|file:///sluice|g" sluice-release.json >"$out/$name.cdx.json"
    rm sluice-release.json
}

step_chart() {
    local helm dir
    helm=$(command -v .tools/kubernetes/helm || command -v helm) || fail "the chart is packed by helm, which is not there: make tools"
    dir=$(mktemp -d)
    "$helm" package deploy/chart --version "$version" --app-version "$version" --destination "$dir" >/dev/null
    # Helm writes the time of the packing into it.
    tar --extract --touch --gzip --directory "$dir" --file "$dir/sluice-$version.tgz"
    chmod -R u=rwX,go=rX "$dir/sluice"
    pack --directory "$dir" sluice >"$out/sluice-$version.tgz"
    rm -r "$dir"
}

step_archive() {
    [[ -x $out/sluice ]] || fail "there is no $out/sluice: build it first"
    local dir
    dir=$(mktemp -d)
    mkdir "$dir/$name"
    install -m 755 "$out/sluice" "$dir/$name/sluice"
    # Called so, it takes the place of envoyproxy/ratelimit.
    ln -s sluice "$dir/$name/ratelimit"
    install -m 644 LICENSE README.md CHANGELOG.md "$dir/$name/"
    cp -r config "$dir/$name/config"
    chmod -R u=rwX,go=rX "$dir/$name"
    pack --directory "$dir" "$name" >"$out/$name.tar.gz"
    rm -r "$dir"
}

# The section of CHANGELOG.md that is headed by the version.
notes() {
    awk -v version="$version" '
        /^## / { inside = ($2 == version); next }
        inside { lines = lines $0 "\n" }
        END { if (lines !~ /[^ \n]/) exit 1; sub(/^\n+/, "", lines); sub(/\n+$/, "\n", lines); printf "%s", lines }
    ' CHANGELOG.md || fail "CHANGELOG.md has no section \"## $version\" that says something"
}

step_notes() {
    {
        echo "# Sluice $version"
        echo
        notes
    } >"$out/NOTES.md"
}

step_sums() {
    # Without the list itself, and what an archive has in it.
    (cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS ! -name sluice -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >SHA256SUMS)
    cat "$out/SHA256SUMS"
}

step_image() {
    local arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
    : >"$out/image-bases.txt"
    local argument image digest
    for argument in RUST_IMAGE BASE_IMAGE; do
        image=$(sed -n "s/^ARG $argument=//p" Dockerfile)
        digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}') || fail "$image can't be looked up"
        arguments+=(--build-arg "$argument=$image@$digest")
        echo "$argument=$image@$digest" >>"$out/image-bases.txt"
    done
    docker buildx build "${arguments[@]}" --sbom=true --provenance=true --tag "sluice:$version" \
        --output "type=oci,dest=$out/image.tar,rewrite-timestamp=true" .
}

shift
[[ $# -gt 0 ]] || set -- check build sbom chart archive notes sums
for step in "$@"; do
    declare -F "step_$step" >/dev/null || fail "there is no step '$step'"
    "step_$step"
done
