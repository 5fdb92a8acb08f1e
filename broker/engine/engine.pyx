# cython: language_level=3
"""The engine: opens a data folder, finds logs by name, does the housekeeping, closes in order."""
import asyncio
import errno
import gc
import os
import threading

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.journal cimport Journal
from broker.engine.log.policy cimport RETENTION_OWNED, SYNC_NONE, LogPolicy
from broker.engine.log.log cimport Log, files_closed
from broker.engine.state cimport EngineState
from broker.routing.router cimport Router
from broker.runtime.turn cimport Turn

from broker.engine import catalog, health
from broker.engine.log.files import (
    CURSOR_SUFFIX, CURSORS, NameTakenError, QuarantinedError, escape, is_log_folder, put_aside,
    unescape)
from broker.engine.log.policy import ACKED, OWNED, plain_policy
from broker.engine.recovery import open_known, open_log
from broker.engine.settings import change, configure, effective
from broker.base.durable import make_folder

TRASH = '.deleted'

cdef enum:
    FOUND_SYNCS = 200       # logs found at the start that are synced per second, beside live ones


cdef class Engine:
    def __init__(self, Turn turn, Router router, root, limits, sync_for, report,
                 retention_for=None):
        """`root`: the folder of the logs; None = all in memory. `limits`: an EngineLimits.

        `sync_for(name)` returns the sync policy of a log: 'always', 'none' or a period in seconds.
        `retention_for(name)` returns its limits (max_age, max_bytes, max_msgs, keep, keep_bytes),
        with 0 for no limit, or None to keep what is not acked; see settings.pyx. `report(level,
        text, **fields)` writes a log line.
        """
        self.shared = EngineState(turn, router, root, report, limits)
        self.shared.make_cursor = make_cursor
        self.sync_for = sync_for
        self.retention_for = retention_for or keep_all
        self.logs = {}
        self.by_bytes = {}
        self.owned = {}
        self.quarantined = {}
        self.reserved = {}
        self.problems = []

    def open(self, loop):
        """Recover the logs and start the housekeeping. OSError: the folder cannot be read.

        A log that cannot be opened is quarantined; all others are opened.
        """
        self.loop = loop
        for worker in self.shared.workers:
            loop.add_reader(worker.event_fd, worker.reap)
        if self.shared.root is not None:
            folders = self.folders()
            collecting = gc.isenabled()
            gc.disable()        # very many new objects, which all stay
            try:
                self.open_folders(folders)
            finally:
                if collecting:
                    gc.enable()
        self.begin_syncs()
        self.timer = loop.call_later(1.0, self.maintain)

    def begin_syncs(self):
        """Sync logs that were found, as many as the housekeeping would in a second."""
        cdef Log log
        cdef int left = FOUND_SYNCS
        for log in self.all_logs():
            if log.sync.unsynced and log.policy.sync_mode != SYNC_NONE and left:
                left -= 1
                log.sync.start()

    def folders(self):
        """The sorted names in the folder of all logs, which is created if necessary. On a full disk
        this, or the sync of its name, may have to wait until the first log is created."""
        root = self.shared.root
        try:
            make_folder(root)
            self.shared.root_known = True
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.problems.append(f'{root}: cannot be made or synced: {problem.strerror}')
        try:
            return sorted(os.listdir(root))
        except FileNotFoundError:
            return []

    cdef object open_folders(self, list folders):
        cdef Log log
        if not folders:
            return
        root = self.shared.root
        known = self.known_logs()
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in folders:
                if name.startswith(TRASH):
                    remove_later(f'{root}/{name}')
                elif is_log_folder(name):
                    log = self.recover(name, root_fd, known.get(name))
                    if log is not None:
                        self.adopt(log)
        finally:
            os.close(root_fd)

    cdef Log recover(self, str folder, int root_fd, list entry):
        """The log in a folder. None: there is none, or it cannot be opened and is quarantined.
        `entry`: its entry in the catalog, or None."""
        path = f'{self.shared.root}/{folder}'
        try:
            if entry is not None and catalog.is_still_so(root_fd, entry):
                return open_known(self.shared, entry, self.sync_for, self.retention_for,
                                  self.problems)
            return open_log(self.shared, path, self.sync_for, self.retention_for,
                            self.problems)
        except Exception as problem:
            self.quarantine(unescape(folder), path, problem)
        return None

    def quarantine(self, str name, str path, problem):
        """A log cannot be opened: its name is reserved, and its files stay unchanged."""
        reason = str(problem) or repr(problem)
        self.quarantined[name] = path
        self.shared.health.add(health.LOG, name, f'quarantined: {reason}')
        self.shared.report('error', 'a log cannot be opened and is quarantined', log=name,
                           path=path, reason=reason)

    def retry(self, str name):
        """Open a quarantined log again. None: its folder does not contain a log any more.

        KeyError: no log of this name is quarantined. QuarantinedError: it still cannot be opened.
        """
        cdef Log log = None
        path = self.quarantined.pop(name)
        self.shared.turn.tick()
        try:
            if os.path.lexists(path):
                log = self.recover(os.path.basename(path), -1, None)
        finally:
            if name not in self.quarantined:
                self.shared.health.remove(health.LOG, name)
        if name in self.quarantined:
            raise QuarantinedError(path)
        if log is not None:
            self.adopt(log)
        self.shared.report('info', 'a log is not quarantined any more', log=name)
        return log

    def put_aside(self, str name):
        """Rename the folder of a quarantined log. Returns the new path. KeyError: no log of this
        name is quarantined. OSError: nothing has changed."""
        aside = put_aside(self.quarantined[name])
        del self.quarantined[name]
        self.shared.health.remove(health.LOG, name)
        self.shared.report('warning', 'a quarantined log was put aside', log=name, path=aside)
        return aside

    def known_logs(self):
        """The catalog's entries, by folder."""
        try:
            return catalog.load_and_remove(self.shared.root)
        except OSError as problem:
            self.problems.append(f'{problem}: all logs are looked at')
            return {}

    def watch(self, watcher):
        """Call watcher(log, cursor, created) when a log (cursor is None) or a cursor is created or
        deleted. The call is immediate, so it must not wait. It passes names, because the objects
        may be deleted again."""
        self.shared.watchers.append(watcher)

    def unwatch(self, watcher):
        """Stop calling the watcher."""
        self.shared.watchers.remove(watcher)

    def reserve(self, str name, owner=None):
        """Create no log of this name from now on. `owner` replaces it; None = nothing does for now.
        A second call replaces the owner. NameTakenError: there is such a log."""
        if name in self.logs or name in self.owned or name in self.quarantined:
            raise NameTakenError(name)
        self.reserved[name] = owner

    def release(self, str name):
        """Let logs have this name again."""
        self.reserved.pop(name, None)

    def announce(self, str name, cursor, bint created):
        """Report to the watchers what replaces a reserved name, as if it were a log."""
        self.shared.changed(name, cursor, created)

    def adopt(self, Log log):
        """Make a log available by its name."""
        log.call_when_unused(self.delete_log)
        log.touch()
        if log.policy.retention_mode == RETENTION_OWNED:
            self.owned[log.name] = log
            return
        self.logs[log.name] = log
        self.by_bytes[log.name.encode()] = log
        self.shared.changed(log.name, None, created=True)

    def all_logs(self):
        """The logs of all protocols, and those that only their owners know."""
        return [*self.logs.values(), *self.owned.values()]

    cdef Log find(self, const char *name, size_t n):
        return self.by_bytes.get(PyBytes_FromStringAndSize(name, <Py_ssize_t>n))

    def log(self, str name):
        """The log of this name, or None."""
        return self.logs.get(name)

    def readable(self, str name):
        """The log of this name, or that of a stream whose messages are known; None: neither."""
        cdef Log log = self.owned.get(name)
        if log is None:
            return self.logs.get(name)
        return None if log.owner is None else log

    def open_log(self, str name, bint ephemeral=False, str protocol=None, str retention=None,
                 subjects=None):
        """The log of this name, created if it does not exist; an ephemeral one is in memory.
        OSError.

        `protocol`: the protocol that owns it. `retention`, `subjects`: see LogPolicy. None leaves
        each of them unchanged; a new log then has no protocol, keeps what is not acked, and is
        bound to its own name. ValueError: invalid subjects. NameTakenError: the name is reserved.
        """
        cdef Log log = self.logs.get(name) or self.owned.get(name)
        if log is not None and (retention == OWNED) != (
                log.policy.retention_mode == RETENTION_OWNED):
            raise NameTakenError(name)      # only its owner writes to it
        if log is not None:
            protocol = protocol or log.protocol
            retention = retention or log.policy.retention
            if protocol != log.protocol or retention != log.policy.retention:
                log.set_protocol(protocol, retention)
            if subjects is not None and tuple(subjects) != log.policy.subjects:
                log.set_subjects(subjects)
            return log
        if name in self.quarantined:
            raise QuarantinedError(self.quarantined[name])
        if name in self.reserved:
            raise NameTakenError(name)
        folder = None
        if not ephemeral and self.shared.root is not None:
            folder = os.path.join(self.shared.root, escape(name))
            if not os.path.isdir(self.shared.root):
                make_folder(self.shared.root)   # it was removed, or the disk was full at the start
            try:
                os.mkdir(folder)
            except FileExistsError:
                if not os.path.isdir(folder):
                    raise
                log = self.recover_unknown(name, folder)
                if log is not None:
                    return self.open_log(name, ephemeral, protocol, retention, subjects)
        self.shared.turn.tick()
        try:
            return self.make_log(name, folder, ephemeral, protocol, retention, subjects)
        except OSError as problem:
            if not files_closed(self.shared, problem):
                raise
        return self.make_log(name, folder, ephemeral, protocol, retention, subjects)

    cdef Log recover_unknown(self, str name, folder):
        """A log in a folder where nothing was found at the start. None: there is none.
        QuarantinedError: it cannot be opened."""
        cdef Log log
        if not os.listdir(folder):
            return None
        log = self.recover(os.path.basename(folder), -1, None)
        if name in self.quarantined:
            raise QuarantinedError(folder)
        if log is None:
            os.makedirs(folder, exist_ok=True)      # its content has been put aside
            return None
        self.shared.report('warning', 'a log was found that was not there at the start', log=name,
                           path=folder)
        self.adopt(log)
        return log

    cdef Log make_log(self, str name, folder, bint ephemeral, str protocol, str retention,
                      subjects):
        cdef LogPolicy policy = plain_policy(self.sync_for(name), retention or ACKED)
        if subjects is not None:
            policy = policy.with_subjects(subjects)
        cdef Log log = Log(self.shared, name, folder, os.urandom(16), policy, ephemeral, protocol)
        configure(log, self.sync_for, self.retention_for)
        try:
            log.save()
        except OSError:
            log.close(delete=True)
            raise
        self.adopt(log)
        return log

    def settings_of(self, Log log):
        """The settings in force for a log: its own ones, otherwise the configured ones."""
        return effective(log, self.sync_for, self.retention_for)

    def set_settings(self, Log log, dict settings):
        """Replace a log's own settings permanently. OSError: nothing has changed."""
        self.shared.turn.tick()
        change(log, settings, self.sync_for, self.retention_for)

    def delete_log(self, str name):
        """Delete a log, its cursors and its files. OSError: nothing has changed."""
        cdef Log log = self.logs.get(name) or self.owned.get(name)
        if log is None:
            return
        trash = None
        if log.folder is not None:
            # This comes first: the next log of this name would find a remaining folder.
            trash = os.path.join(self.shared.root, f'{TRASH}-{log.log_id.hex()}')
            os.rename(log.folder, trash)
        known = self.owned.pop(name, None) is None
        if known:
            del self.logs[name]
            del self.by_bytes[log.name.encode()]
        self.shared.touched.discard(log)
        cursors = list(log.cursors)
        log.close(delete=True)
        if trash is not None:
            remove_later(trash)
        if not known:
            return
        for cursor in cursors:
            self.shared.changed(name, cursor, created=False)
        self.shared.changed(name, None, created=False)

    def maintain(self):
        """Every second: periodic syncs, files to close, space to free."""
        cdef Log log
        self.shared.turn.tick()
        self.shared.found_left = FOUND_SYNCS
        self.shared.end_long_wait()
        for log in list(self.shared.touched):
            log.maintain()
        self.timer = self.loop.call_later(1.0, self.maintain)

    @property
    def behind(self):
        """Whether something that was accepted is not yet written or synced."""
        cdef Log log
        for log in self.all_logs():
            if log.waiting_bytes or log.sync.under_way or (
                    log.sync.settled_ticket < log.ticket):
                return True
        return not all(worker.idle for worker in self.shared.workers)

    async def settle(self):
        """Wait until everything that was accepted has been answered."""
        while self.behind:
            await asyncio.sleep(self.shared.settle_poll)

    async def close(self):
        """Write, sync and close everything."""
        cdef Log log
        if self.timer is not None:
            self.timer.cancel()
        self.shared.turn.end()
        await self.settle()
        for log in self.all_logs():
            log.maintain()
            if log.policy.sync_mode != SYNC_NONE:
                log.sync.start()
        await self.settle()
        entries = []
        for log in self.all_logs():
            log.close()
            entries.append((log, catalog.entry_of(log)))
            log.abandon()
        for worker in self.shared.workers:
            worker.stop()
            worker.reap()
        self.finish_workers()
        if self.shared.root is not None:
            self.write_catalog(entries)

    def write_catalog(self, entries):
        """Write the catalog for the next start, unless a disk has failed."""
        if self.shared.write_errors or self.shared.sync_errors:
            return
        try:
            catalog.save(self.shared.root, [
                entry for log, entry in entries
                if entry is not None and catalog.is_written(log)], self.problems)
        except OSError as problem:
            self.shared.report('warning', 'the next start must look at all logs',
                               reason=str(problem))

    def finish_workers(self):
        """Remove the workers' event descriptors from the loop."""
        for worker in self.shared.workers:
            if self.loop is not None:
                self.loop.remove_reader(worker.event_fd)
            worker.close()


def make_cursor(Log log, str name, uint64_t start, bint ephemeral):
    """A new cursor of a log, with a journal if its state is stored. OSError."""
    cdef Journal journal = None
    if not ephemeral and log.folder is not None:
        folder = os.path.join(log.folder, CURSORS)
        os.makedirs(folder, exist_ok=True)
        journal = Journal(log.shared, os.path.join(folder, escape(name) + CURSOR_SUFFIX))
    return Cursor(log, name, start, journal, ephemeral)


def keep_all(name):
    """No limits."""
    return None


def remove_later(path):
    """Remove a folder on a thread of its own."""
    import shutil

    threading.Thread(target=shutil.rmtree, args=(path, True), daemon=True).start()
