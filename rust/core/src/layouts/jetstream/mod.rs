//! The JetStream file store's bytes, for every era from 2.6 to 2.15.
//!
//! ```text
//! record     one record of a block: fields, encode, parse, hash
//! scan       a whole block, tolerant: sound records and findings        resync: what it does after a bad one
//! guard      our sidecar with every record's boundaries
//! seqset     sets of sequences in the on-disk tree form
//! idx        N.idx of 2.6 and 2.9           index_db   index.db v1 to v4 of 2.10 and later
//! block      one block in memory: its summary, and its bytes with the slot table        cache: which of them are in memory
//! cold       blocks that are not: read without the lock        skim: the few records of one that match
//! subject_state   per-subject counts, chain: who follows whom on a subject        log   the blocks of one stream: append, read, remove, state
//! query      reading, matching: by filter, past blocks that hold no match, counts: per filter and subject, pages of subjects
//! remove     single messages, truncation, blocks rewritten        evict: what limits take, evicted: what they took
//! commit     group commit and the poison
//! ```

pub mod archive;
pub mod block;
pub mod cache;
pub mod chain;
pub mod cold;
pub mod commit;
pub mod counts;
pub mod decode;
pub mod evict;
pub mod evicted;
pub mod guard;
pub mod idx;
pub mod index_db;
pub mod log;
pub mod matching;
pub mod open;
pub mod pages;
pub mod query;
pub mod record;
pub mod remove;
pub mod resync;
pub mod scan;
pub mod seqset;
mod skim;
pub mod subject_state;
