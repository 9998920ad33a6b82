#!/bin/sh
# Put the patches and the overlay into a tree of Ollama's source: apply.sh DIRECTORY
# A patch that does not fit exactly ends this with an error. The tree is then half patched: throw it away.
set -eu

queue=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

fail() {
  echo "apply.sh: $*" >&2
  exit 1
}

apply_patch() {
  if command -v patch >/dev/null; then
    patch --directory="$tree" --strip=1 --fuzz=0 --forward --no-backup-if-mismatch --reject-file=- <"$1"
  else
    # git never fuzzes. Without the ceiling it would take paths as those of a repository around the tree.
    GIT_CEILING_DIRECTORIES=$(dirname -- "$tree") git -C "$tree" apply --verbose "$1"
  fi
}

[ $# -eq 1 ] || fail "usage: apply.sh DIRECTORY"
[ -f "$1/go.mod" ] || fail "$1 is not Ollama's source: it has no go.mod"
tree=$(CDPATH='' cd -- "$1" && pwd)

while read -r name; do
  echo "patch $name"
  apply_patch "$queue/$name" || fail "$name does not apply; 'python -m worker patches check' with OLLAMA_SRC says where its lines went"
done <"$queue/series"

# Only Go files inside packages: the overlay's own go.mod, one level up, is for testing it alone.
for file in "$queue"/overlay/*/*.go; do
  path=${file#"$queue/overlay/"}
  [ -d "$tree/${path%/*}" ] || fail "$path belongs to a package this source does not have"
  [ ! -e "$tree/$path" ] || fail "$path exists in this source already"
  cp "$file" "$tree/$path"
  echo "overlay $path"
done
