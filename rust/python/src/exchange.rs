//! `Exchange` and the runs of publishes for Python.

use headrace_core::admit::{Memory, Stopped, Walk};
use headrace_core::exchange::MessageRef;
use headrace_core::exchange::runs::{self, Item, Verdict, kind};
use headrace_core::exchange::{
    self as core, ConnectFlags, Delivery, Ended, Listener, Permissions, Pull, PullLimits, Responses, Rule,
};
use headrace_core::wire::nats::Limits;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::admit::{Plan, Producers, Window};
use crate::batch::{Batch, text};
use crate::block_log::BlockLog;
use crate::errors::{bad_input, log_error};
use crate::ledger::{AckRun, Ledger};
use crate::requests::fed_number;
use crate::waiting::{PullRun, Waiting};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CALL", kind::CALL)?;
    module.add("INGEST", kind::INGEST)?;
    module.add("ACKS", kind::ACKS)?;
    module.add("PULLS", kind::PULLS)?;
    module.add("INTEREST", kind::INTEREST)?;
    module.add_class::<Exchange>()?;
    module.add_class::<PublishRun>()?;
    module.add_class::<Traffic>()?;
    module.add_class::<AccountStatistics>()
}

/// Messages and bytes in both directions.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct Traffic {
    pub in_msgs: u64,
    pub in_bytes: u64,
    pub out_msgs: u64,
    pub out_bytes: u64,
}

impl From<core::Traffic> for Traffic {
    fn from(seen: core::Traffic) -> Traffic {
        Traffic { in_msgs: seen.in_msgs, in_bytes: seen.in_bytes, out_msgs: seen.out_msgs, out_bytes: seen.out_bytes }
    }
}

/// The subscriptions of an account's clients, and how its table of subjects is used.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct AccountStatistics {
    pub account: String,
    pub subscriptions: u64,
    pub inserts: u64,
    pub removes: u64,
    pub matches: u64,
    pub hits: u64,
}

#[pyclass(module = "headrace._core")]
pub struct Exchange(pub core::Exchange);

type PermissionLists = (
    Option<Vec<String>>,
    Vec<String>,
    Option<Vec<(String, Option<String>)>>,
    Vec<(String, Option<String>)>,
    Option<(u64, i64)>,
);

fn permissions(lists: PermissionLists) -> Permissions {
    let (publish_allow, publish_deny, subscribe_allow, subscribe_deny, responses) = lists;
    let plain = |filters: Vec<String>| -> Vec<Rule> {
        filters.into_iter().map(|filter| Rule { filter: filter.into_bytes().into(), queue: None }).collect()
    };
    let queued = |filters: Vec<(String, Option<String>)>| -> Vec<Rule> {
        let rule = |(filter, queue): (String, Option<String>)| Rule {
            filter: filter.into_bytes().into(),
            queue: queue.map(|queue| queue.into_bytes().into()),
        };
        filters.into_iter().map(rule).collect()
    };
    let mut made = Permissions::default();
    made.publish_allow = publish_allow.map(plain);
    made.publish_deny = plain(publish_deny);
    made.subscribe_allow = subscribe_allow.map(queued);
    made.subscribe_deny = queued(subscribe_deny);
    made.responses = responses.map(|(max, ttl_ns)| Responses { max, ttl_ns });
    made
}

fn ended<'py>(py: Python<'py>, list: Vec<(Pull, Ended)>) -> Vec<(Bound<'py, PyBytes>, &'static str, u64, u64)> {
    let name = |ended| match ended {
        Ended::Filled => "filled",
        Ended::TooLarge => "too large",
        Ended::Bytes => "bytes",
        Ended::Deserted => "deserted",
    };
    // One that has all its messages ends in silence, unless it also named a number of bytes and some are left.
    let kept = list.into_iter().filter(|(pull, ended)| *ended != Ended::Filled || pull.bytes_left > 0);
    kept.map(|(pull, ended)| (PyBytes::new(py, &pull.reply), name(ended), pull.msgs_left, pull.bytes_left)).collect()
}

#[pymethods]
impl Exchange {
    #[new]
    #[pyo3(signature = (max_payload=1048576, max_control_line=4096, max_subscriptions=0, seed=1, max_pending=0))]
    fn new(
        max_payload: usize,
        max_control_line: usize,
        max_subscriptions: usize,
        seed: u64,
        max_pending: usize,
    ) -> Exchange {
        let limits = Limits { control_line: max_control_line, payload: max_payload };
        let mut made = Exchange(core::Exchange::new(limits, usize::MAX, seed));
        made.set_limits(max_payload, max_control_line, max_subscriptions, max_pending);
        made
    }

    /// 0 for subscriptions and pending bytes: no limit.
    #[pyo3(signature = (max_payload, max_control_line, max_subscriptions, max_pending=0))]
    fn set_limits(
        &mut self,
        max_payload: usize,
        max_control_line: usize,
        max_subscriptions: usize,
        max_pending: usize,
    ) {
        let or_none = |limit| if limit == 0 { usize::MAX } else { limit };
        self.0.limits = Limits { control_line: max_control_line, payload: max_payload };
        self.0.subs_max = or_none(max_subscriptions);
        self.0.pending_max = or_none(max_pending);
    }

    fn account(&mut self, name: &str) -> u32 {
        self.0.account(name)
    }

    fn open(&mut self, account: u32, locked: bool) -> u32 {
        self.0.open(account, locked)
    }

    fn close(&mut self, conn: u32) {
        self.0.close(conn);
    }

    #[pyo3(signature = (conn, account, verbose, pedantic, echo, headers, no_responders, permissions=None))]
    #[allow(clippy::too_many_arguments)] // the fields of CONNECT
    fn accept(
        &mut self,
        conn: u32,
        account: u32,
        verbose: bool,
        pedantic: bool,
        echo: bool,
        headers: bool,
        no_responders: bool,
        permissions: Option<PermissionLists>,
    ) {
        let flags = ConnectFlags { verbose, pedantic, echo, headers, no_responders };
        self.0.accept(conn, account, flags, permissions.map(self::permissions));
    }

    fn permit<'py>(
        &mut self,
        py: Python<'py>,
        conn: u32,
        permissions: Option<PermissionLists>,
    ) -> Vec<Bound<'py, PyString>> {
        let gone = self.0.permit(conn, permissions.map(self::permissions));
        gone.iter().map(|subject| text(py, subject)).collect()
    }

    fn connect_text<'py>(&self, py: Python<'py>, conn: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.connect_text(conn))
    }

    fn refuse(&mut self, conn: u32, text: &str) {
        self.0.refuse(conn, text);
    }

    fn error(&mut self, conn: u32, text: &str) {
        self.0.error(conn, text);
    }

    fn write(&mut self, conn: u32, data: &[u8]) {
        self.0.write(conn, data);
    }

    fn set_congested(&mut self, conn: u32, congested: bool) {
        self.0.set_congested(conn, congested);
    }

    fn ping(&mut self, conn: u32) {
        self.0.ping(conn);
    }

    fn rtt_ns(&self, conn: u32) -> u64 {
        self.0.rtt_ns(conn)
    }

    fn set_tracer(&mut self, id: u64) {
        self.0.set_tracer(id);
    }

    fn pongs(&self, conn: u32) -> u64 {
        self.0.pongs(conn)
    }

    fn traffic(&self, conn: u32) -> Traffic {
        Traffic::from(self.0.traffic(conn).0)
    }

    fn subscription_count(&self, conn: u32) -> usize {
        self.0.traffic(conn).1
    }

    fn totals(&self) -> Traffic {
        Traffic::from(self.0.totals)
    }

    #[allow(clippy::type_complexity)] // one tuple per subscription
    fn subscriptions_of<'py>(
        &self,
        py: Python<'py>,
        conn: u32,
        skip: usize,
        count: usize,
    ) -> Vec<(Bound<'py, PyString>, Option<Bound<'py, PyString>>, Bound<'py, PyString>, u64, u64)> {
        let one = |(subject, queue, sid, delivered, max): (&[u8], Option<&[u8]>, &[u8], u64, u64)| {
            (text(py, subject), queue.map(|queue| text(py, queue)), text(py, sid), delivered, max)
        };
        self.0.subscriptions_of(conn, skip, count).into_iter().map(one).collect()
    }

    fn statistics(&self) -> Vec<AccountStatistics> {
        let one = |(account, subscriptions, inserts, removes, matches, hits): (&str, u64, u64, u64, u64, u64)| {
            AccountStatistics { account: account.to_owned(), subscriptions, inserts, removes, matches, hits }
        };
        self.0.statistics().into_iter().map(one).collect()
    }

    /// See `fed_number`; 1: a CONNECT waits.
    fn feed(&mut self, conn: u32, data: &[u8]) -> u8 {
        fed_number(self.0.feed(conn, data))
    }

    fn set_now(&mut self, now_ns: i64) {
        self.0.now_ns = now_ns;
    }

    fn take_output<'py>(&mut self, py: Python<'py>) -> Vec<(u32, Bound<'py, PyBytes>)> {
        self.0.take_output().into_iter().map(|(conn, out)| (conn, PyBytes::new(py, &out))).collect()
    }

    #[pyo3(signature = (account, subject, reply=None, headers=None, data=None))]
    fn publish(
        &mut self,
        account: u32,
        subject: &[u8],
        reply: Option<&[u8]>,
        headers: Option<&[u8]>,
        data: Option<&[u8]>,
    ) -> usize {
        self.0.publish(account, &MessageRef { subject, reply, headers, payload: data.unwrap_or_default() })
    }

    #[pyo3(signature = (account, subject, queue=None))]
    fn interest(&mut self, account: u32, subject: &str, queue: Option<&str>) -> usize {
        self.0.interest(account, subject.as_bytes(), queue.map(str::as_bytes))
    }

    fn listen(&mut self, account: u32, filter: &str, kind: u8, id: u64) -> u64 {
        self.0.listen(account, filter.as_bytes(), Listener { kind, id })
    }

    fn unlisten(&mut self, token: u64) {
        self.0.unlisten(token);
    }

    fn take_acks(&mut self, account: u32, stream: &str, consumer: &str, id: u64) {
        self.0.take_acks(account, stream.as_bytes(), consumer.as_bytes(), id);
    }

    fn leave_acks(&mut self, account: u32, stream: &str, consumer: &str) {
        self.0.leave_acks(account, stream.as_bytes(), consumer.as_bytes());
    }

    #[pyo3(signature = (account, subject, queue, id))]
    fn watch(&mut self, account: u32, subject: &str, queue: Option<&str>, id: u64) -> u64 {
        self.0.watch(account, subject.as_bytes(), queue.map(str::as_bytes), id)
    }

    fn unwatch(&mut self, token: u64) {
        self.0.unwatch(token);
    }

    fn drain<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = PyList::empty(py);
        for item in self.0.drain() {
            let tuple = match item {
                Item::Publish(id, run) => (kind::INGEST, id, Py::new(py, PublishRun(run))?).into_pyobject(py)?,
                Item::Acks(id, run) => (kind::ACKS, id, Py::new(py, AckRun(run))?).into_pyobject(py)?,
                Item::Pulls(id, run) => (kind::PULLS, id, Py::new(py, PullRun(run))?).into_pyobject(py)?,
                Item::Interest(id, some) => (kind::INTEREST, id, some).into_pyobject(py)?,
                Item::Call(id, call) => {
                    let optional = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| PyBytes::new(py, bytes));
                    let parts = (
                        call.conn,
                        text(py, &call.subject),
                        optional(&call.reply),
                        optional(&call.headers),
                        PyBytes::new(py, &call.data),
                        call.account,
                    );
                    (kind::CALL, id, parts).into_pyobject(py)?
                }
            };
            items.append::<Bound<'py, PyTuple>>(tuple)?;
        }
        Ok(items)
    }

    fn answer(&mut self, run: &PublishRun, head: &[u8], tail: &[u8]) {
        self.0.answer(&run.0, head, tail);
    }

    fn confirm(&mut self, account: u32, run: &AckRun, delivered: u64) {
        self.0.confirm(account, &run.0, delivered);
    }

    #[pyo3(signature = (waiting, run, group, now, msgs, bytes=0, expires=0, heartbeat=0, no_wait=false, tag=0))]
    #[allow(clippy::too_many_arguments)] // the fields of a pull request
    fn add_pulls(
        &self,
        waiting: &mut Waiting,
        run: &PullRun,
        group: usize,
        now: i64,
        msgs: u64,
        bytes: u64,
        expires: i64,
        heartbeat: i64,
        no_wait: bool,
        tag: u64,
    ) -> PyResult<()> {
        if group >= run.0.groups.len() {
            return Err(bad_input(format!("group {group} of {}", run.0.groups.len())));
        }
        let limits = PullLimits { msgs, bytes, expires, heartbeat, no_wait, tag };
        run.0.replies_of(group).for_each(|reply| waiting.0.add(reply, limits, now));
        Ok(())
    }

    #[pyo3(signature = (account, ledger, waiting, batch, ack_prefix, pending, wall_ns, now, again=false, headers_only=false, tag=None))]
    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call per delivery, no objects made for it
    fn deliver_pull<'py>(
        &mut self,
        py: Python<'py>,
        account: u32,
        ledger: &mut Ledger,
        waiting: &mut Waiting,
        batch: &Batch,
        ack_prefix: &[u8],
        pending: u64,
        wall_ns: i64,
        now: i64,
        again: bool,
        headers_only: bool,
        tag: Option<u64>,
    ) -> (usize, Vec<(Bound<'py, PyBytes>, &'static str, u64, u64)>) {
        let delivery = Delivery { account, ack_prefix, pending, again, wall_ns, now, headers_only, tag };
        let (taken, over) = self.0.deliver_pull(&delivery, &mut ledger.0, &mut waiting.0, &batch.0);
        (taken, ended(py, over))
    }

    #[pyo3(signature = (account, ledger, subject, group, batch, ack_prefix, pending, wall_ns, now, again=false, headers_only=false))]
    #[allow(clippy::too_many_arguments)] // one call per delivery, no objects made for it
    fn deliver_push(
        &mut self,
        account: u32,
        ledger: &mut Ledger,
        subject: &[u8],
        group: Option<&[u8]>,
        batch: &Batch,
        ack_prefix: &[u8],
        pending: u64,
        wall_ns: i64,
        now: i64,
        again: bool,
        headers_only: bool,
    ) -> (usize, u64) {
        let delivery = Delivery { account, ack_prefix, pending, again, wall_ns, now, headers_only, tag: None };
        self.0.deliver_push(&delivery, &mut ledger.0, subject, group, &batch.0)
    }

    /// Connections whose clients listen on a subject.
    fn listeners_of(&mut self, account: u32, subject: &[u8]) -> Vec<u32> {
        self.0.listeners_of(account, subject)
    }
}

#[pyclass(module = "headrace._core")]
pub struct PublishRun(pub runs::PublishRun);

#[pymethods]
impl PublishRun {
    fn __len__(&self) -> usize {
        self.0.batch.len()
    }

    #[getter]
    fn account(&self) -> u32 {
        self.0.account
    }

    #[getter]
    fn batch(&self) -> Batch {
        Batch(self.0.batch.clone())
    }

    #[getter]
    fn payload_bytes(&self) -> u64 {
        self.0.batch.payload_bytes()
    }

    /// (next, accepted, what the message at `next` needs). `alone`: the message at `start` only, whose caller stores it.
    #[allow(clippy::too_many_arguments)] // one call per run, no objects made for it
    #[pyo3(signature = (plan, window, producers, log, start, now_ns, alone=false))]
    fn admit(
        &mut self,
        plan: &Plan,
        window: &mut Window,
        producers: &mut Producers,
        log: &BlockLog,
        start: usize,
        now_ns: i64,
        alone: bool,
    ) -> PyResult<(usize, usize, Option<&'static str>)> {
        let mut memory = Memory { window: &mut window.0, producers: &mut producers.0 };
        let walk = if alone { Walk::Alone(start) } else { Walk::From(start) };
        let done = headrace_core::admit::admit(&mut self.0, &plan.0, &mut memory, log.core(), walk, now_ns);
        let done = done.map_err(log_error)?;
        Ok((done.next, done.accepted, done.stopped.map(Stopped::name)))
    }

    /// `admit`, and if that says yes to all and they fit into the newest block: (first, next, bytes) of what was stored.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)] // one call per run, no objects made for it
    fn admit_and_append(
        &mut self,
        py: Python<'_>,
        plan: &Plan,
        window: &mut Window,
        producers: &mut Producers,
        log: &BlockLog,
        now_ns: i64,
        block_bytes_max: usize,
    ) -> PyResult<(usize, usize, Option<&'static str>, Option<(u64, u64, u64)>)> {
        let mut memory = Memory { window: &mut window.0, producers: &mut producers.0 };
        let (run, log) = (&mut self.0, log.core());
        let done = py
            .detach(|| headrace_core::admit::admit_and_append(run, &plan.0, &mut memory, log, now_ns, block_bytes_max))
            .map_err(log_error)?;
        let (admitted, stored) = done;
        let stored = stored.map(|done| (done.first, done.next, done.bytes));
        Ok((admitted.next, admitted.accepted, admitted.stopped.map(Stopped::name), stored))
    }

    /// The same messages on other subjects.
    fn resubject(&mut self, subjects: Vec<String>) -> PyResult<()> {
        if subjects.len() != self.0.batch.len() {
            return Err(bad_input(format!("{} subjects for {} messages", subjects.len(), self.0.batch.len())));
        }
        self.0.resubject(&subjects);
        Ok(())
    }

    /// The messages of `[start, stop)` that no verdict was given on.
    fn accepted(&self, start: usize, stop: usize) -> Batch {
        Batch(self.0.accepted(start, stop))
    }

    /// Those from `start` on without a verdict have consecutive sequences from `first` on.
    fn assign_sequences(&mut self, start: u32, first: u64) {
        self.0.stored.push((start, first));
    }

    /// Answer message `at` (and do not store it) with `body`; None: no answer.
    #[pyo3(signature = (at, body=None))]
    fn decided(&mut self, at: u32, body: Option<&[u8]>) {
        let answer = body.map(|body| self.0.text(body));
        self.0.judge(at, Verdict::Answered(answer));
    }

    /// The same for all of `[start, stop)` without a verdict.
    fn refuse(&mut self, start: u32, stop: u32, body: &[u8]) {
        let answer = self.0.text(body);
        for at in start..stop {
            if !self.0.judged(at) {
                self.0.judge(at, Verdict::Answered(Some(answer)));
            }
        }
    }

    fn is_judged(&self, at: u32) -> bool {
        self.0.judged(at)
    }

    /// (subject, headers, data, reply) of one message.
    #[allow(clippy::type_complexity)] // the four parts of a message
    fn message<'py>(
        &self,
        py: Python<'py>,
        at: usize,
    ) -> PyResult<(Bound<'py, PyString>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>)>
    {
        let run = &self.0;
        let entry =
            run.batch.entries().get(at).ok_or_else(|| bad_input(format!("message {at} of {}", run.replies.len())))?;
        let headers = (!entry.headers.is_null()).then(|| PyBytes::new(py, run.batch.bytes(entry.headers)));
        let reply = run.reply(at).map(|reply| PyBytes::new(py, reply));
        Ok((text(py, run.batch.bytes(entry.subject)), headers, PyBytes::new(py, run.batch.bytes(entry.data)), reply))
    }

    #[getter]
    fn wants_answers(&self) -> bool {
        self.0.replies.iter().any(|reply| !reply.is_null())
    }
}
