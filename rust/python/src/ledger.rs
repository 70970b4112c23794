//! `AckRun` and `Ledger` for Python.

use headrace_core::ledger::{self as core, AckKind, AckPolicy, Rules, State};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::bad_input;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AckRun>()?;
    module.add_class::<LedgerPosition>()?;
    module.add_class::<PendingDelivery>()?;
    module.add_class::<Ledger>()
}

/// (kind, deliveries, stream sequence, consumer sequence, body, reply)
type AckItem<'py> = (&'static str, u64, u64, u64, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);
/// The same as somebody who makes a run in Python gives it.
type GivenAck<'py> = (String, u64, u64, u64, Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>);

#[pyclass(frozen, module = "headrace._core")]
pub struct AckRun(pub core::AckRun);

#[pymethods]
impl AckRun {
    #[new]
    fn new(items: Vec<GivenAck<'_>>) -> PyResult<AckRun> {
        let mut run = core::AckRun::new();
        for (kind, deliveries, stream_seq, consumer_seq, body, reply) in items {
            let kind = AckKind::from_name(&kind).ok_or_else(|| bad_input(format!("no ack is called {kind:?}")))?;
            run.push(
                kind,
                deliveries,
                stream_seq,
                consumer_seq,
                body.as_bytes(),
                reply.as_ref().map(|reply| reply.as_bytes()),
            );
        }
        Ok(AckRun(run))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn has_replies(&self) -> bool {
        self.0.has_replies()
    }

    fn item<'py>(&self, py: Python<'py>, index: usize) -> PyResult<AckItem<'py>> {
        let ack = self.0.acks.get(index).ok_or_else(|| PyIndexError::new_err(index))?;
        let body = PyBytes::new(py, self.0.body(ack));
        let reply = self.0.reply(ack).map(|reply| PyBytes::new(py, reply));
        Ok((ack.kind.name(), ack.deliveries, ack.stream_seq, ack.consumer_seq, body, reply))
    }
}

type Pair = (u64, u64);

/// A consumer's own sequence and the stream's.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct LedgerPosition {
    pub consumer: u64,
    pub stream: u64,
}

impl From<Pair> for LedgerPosition {
    fn from((consumer, stream): Pair) -> LedgerPosition {
        LedgerPosition { consumer, stream }
    }
}

/// A message that was delivered and is not acked.
#[pyclass(frozen, get_all, module = "headrace._core")]
pub struct PendingDelivery {
    pub consumer_seq: u64,
    pub time_ns: i64,
    pub deliveries: u32,
}

type StateTuple = (Pair, Pair, Vec<(u64, u64, i64)>, Vec<Pair>);

fn rules_of(policy: &str, max_deliver: i64, ack_wait_ns: i64, backoff_ns: Vec<i64>) -> PyResult<Rules> {
    let policy = match policy {
        "none" => AckPolicy::None,
        "all" | "flow_control" => AckPolicy::All,
        "explicit" => AckPolicy::Explicit,
        other => return Err(bad_input(format!("ack policy {other:?}"))),
    };
    let max_deliver = u32::try_from(max_deliver.max(0)).unwrap_or(0);
    Ok(Rules { policy, max_deliver, ack_wait_ns, backoff_ns })
}

#[pyclass(module = "headrace._core")]
pub struct Ledger(pub core::Ledger);

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (ack_policy, max_deliver=-1, ack_wait_ns=30_000_000_000, backoff_ns=vec![]))]
    fn new(ack_policy: &str, max_deliver: i64, ack_wait_ns: i64, backoff_ns: Vec<i64>) -> PyResult<Ledger> {
        Ok(Ledger(core::Ledger::new(rules_of(ack_policy, max_deliver, ack_wait_ns, backoff_ns)?, 0)))
    }

    /// Another configuration; the state stays.
    fn configure(
        &mut self,
        ack_policy: &str,
        max_deliver: i64,
        ack_wait_ns: i64,
        backoff_ns: Vec<i64>,
    ) -> PyResult<()> {
        self.0.set_rules(rules_of(ack_policy, max_deliver, ack_wait_ns, backoff_ns)?);
        Ok(())
    }

    #[getter]
    fn delivered(&self) -> LedgerPosition {
        LedgerPosition::from(self.0.delivered())
    }

    #[getter]
    fn floor(&self) -> LedgerPosition {
        LedgerPosition::from(self.0.floor())
    }

    #[getter]
    fn num_pending(&self) -> usize {
        self.0.num_pending()
    }

    #[getter]
    fn num_redelivered(&self) -> usize {
        self.0.num_redelivered()
    }

    #[getter]
    fn num_due(&self) -> usize {
        self.0.num_due()
    }

    fn pending_of(&self, stream_seq: u64) -> Option<PendingDelivery> {
        let (consumer_seq, time_ns, deliveries) = self.0.pending_of(stream_seq)?;
        Some(PendingDelivery { consumer_seq, time_ns, deliveries })
    }

    fn unacked(&self) -> Vec<u64> {
        self.0.unacked()
    }

    fn acked_among(&self, sequences: Vec<u64>) -> Vec<u64> {
        self.0.acked_among(&sequences)
    }

    fn sent(&mut self, stream_seq: u64, now_ns: i64) -> Pair {
        let sent = self.0.sent(stream_seq, now_ns);
        (sent.consumer_seq, sent.deliveries)
    }

    fn apply(&mut self, run: &AckRun, start: usize, now_ns: i64, want_acked: bool) -> (usize, usize, Option<Vec<u64>>) {
        let mut acked = want_acked.then(Vec::new);
        let done = self.0.apply(&run.0, start, now_ns, acked.as_mut());
        (done.next, done.acked, acked)
    }

    /// The sequences that one ack covered.
    fn ack(&mut self, stream_seq: u64, consumer_seq: u64) -> Vec<u64> {
        let mut acked = Vec::new();
        self.0.ack(stream_seq, consumer_seq, Some(&mut acked));
        acked
    }

    fn nak(&mut self, stream_seq: u64, delay_ns: i64, now_ns: i64) -> bool {
        self.0.nak(stream_seq, delay_ns, now_ns)
    }

    fn progress(&mut self, stream_seq: u64, now_ns: i64) -> bool {
        self.0.progress(stream_seq, now_ns)
    }

    fn removed(&mut self, sequences: Vec<u64>) -> Vec<(u64, u64, u32)> {
        self.0.removed(&sequences)
    }

    fn removed_below(&mut self, stream_seq: u64, moves_on: bool) -> usize {
        self.0.removed_below(stream_seq, moves_on)
    }

    fn expire(&mut self, now_ns: i64) -> usize {
        self.0.expire(now_ns)
    }

    fn next_deadline(&self) -> Option<i64> {
        self.0.next_deadline()
    }

    fn due(&mut self, max: usize) -> Vec<u64> {
        self.0.due(max)
    }

    fn queue_all(&mut self) -> usize {
        self.0.queue_all()
    }

    fn take_exceeded(&mut self) -> Vec<(u64, u32)> {
        self.0.take_exceeded()
    }

    fn reset(&mut self, stream_seq: u64) {
        self.0.reset(stream_seq);
    }

    /// ((consumer, stream) delivered, floor, [(seq, consumer seq, time)], [(seq, redeliveries)])
    fn state(&self) -> StateTuple {
        let state = self.0.state();
        (state.delivered, state.floor, state.pending, state.redelivered)
    }

    /// Take a state over; sequences must be in order.
    fn set_state(&mut self, delivered: Pair, floor: Pair, pending: Vec<(u64, u64, i64)>, redelivered: Vec<Pair>) {
        let state = State { delivered, floor, pending, redelivered };
        self.0 = core::Ledger::from_state(self.0.rules().clone(), &state);
    }

    /// The fields of o.dat, without a trailer.
    fn encode_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.encode_state())
    }

    /// Note changes from now on.
    fn record(&mut self) {
        self.0.record(true);
    }

    #[getter]
    fn changes_len(&self) -> usize {
        self.0.changes_len()
    }

    fn take_changes<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.take_changes().map(|bytes| PyBytes::new(py, &bytes))
    }

    /// The changes so far and the fields of o.dat that hold them, at one moment.
    #[allow(clippy::type_complexity)]
    fn checkpoint<'py>(&mut self, py: Python<'py>) -> (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>) {
        (self.take_changes(py), self.encode_state(py))
    }

    /// The highest stream sequence that a record of `take_changes` proves to have existed.
    #[staticmethod]
    fn highest_sent(record: &[u8]) -> u64 {
        core::highest_sent(record)
    }

    fn replay(&mut self, record: &[u8]) -> PyResult<()> {
        self.0.replay(record).map_err(|error| bad_input(error.to_string()))
    }
}
