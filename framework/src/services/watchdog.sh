# Waits until the process that owns a server is gone, however it went, then ends the server and removes its folder.
# Standard input is a pipe whose other end only the owner holds: reading it ends when the owner does.
trap '' HUP INT TERM QUIT PIPE
id=${TIDINGS_FOLDER##*/}
# The owner may have been given a PATH without the system's tools.
PATH=${PATH:+$PATH:}/usr/bin:/bin:/run/current-system/sw/bin

servers() {
    if [ -d /proc/self ]; then
        # The name comes through a pipe, or grep would find itself.
        printf '%s\n' "$id" | grep -lsF -f - /proc/[0-9]*/cmdline | while IFS= read -r file; do
            line=$(tr '\000' ' ' <"$file" 2>/dev/null)
            is_server "$line" && { pid=${file#/proc/}; echo "${pid%/cmdline}"; }
        done
    else
        ps -Axww -o pid=,command= | while read -r pid line; do
            case $line in *"$id"*) is_server "$line" && echo "$pid" ;; esac
        done
    fi
}

is_server() {
    program=${1%% *}
    case ${program##*/} in postgres | postgres: | initdb | nats-server) return 0 ;; esac
    return 1
}

tell() {
    for pid in $(servers); do
        kill -CONT "$pid" 2>/dev/null
        kill "-$1" "$pid" 2>/dev/null
    done
}

while read -r _; do :; done

tell QUIT
tries=0
while [ -n "$(servers)" ] && [ "$tries" -lt 100 ]; do
    [ "$tries" -ge 50 ] && tell KILL
    sleep 0.1
    tries=$((tries + 1))
done

# An initdb that was cut short may still write for a moment.
tries=0
while [ -e "$TIDINGS_FOLDER" ] && [ "$tries" -lt 50 ]; do
    rm -rf "$TIDINGS_FOLDER" 2>/dev/null
    [ -e "$TIDINGS_FOLDER" ] && sleep 0.1
    tries=$((tries + 1))
done
