package memory

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// recent remembers the keys of the latest attempts and ended runs, so that a doubled message counts once. It is a
// set-associative cache: each key has ways places, the newest first, so adding one costs one cache line, allocates
// nothing and forgets the oldest of its row. The zero value is empty.
type recent struct{ rows [][recentWays]uint64 }

// 16,384 keys: at 1,000 Records a second a double is recognised for at least some seconds, at laptop rates for hours.
const (
	recentRows = 2048
	recentWays = 8
)

// add remembers key and reports whether it is new.
func (r *recent) add(key uint64) bool {
	if r.rows == nil {
		r.rows = make([][recentWays]uint64, recentRows)
	}
	row := &r.rows[key%recentRows]
	for _, known := range row {
		if known == key {
			return false
		}
	}
	copy(row[1:], row[:recentWays-1])
	row[0] = key
	return true
}

// has reports whether key is remembered.
func (r *recent) has(key uint64) bool {
	if r.rows == nil {
		return false
	}
	for _, known := range r.rows[key%recentRows] {
		if known == key {
			return true
		}
	}
	return false
}

// remove forgets key.
func (r *recent) remove(key uint64) {
	if r.rows == nil {
		return
	}
	row := &r.rows[key%recentRows]
	for i, known := range row {
		if known == key {
			copy(row[i:], row[i+1:])
			row[recentWays-1] = 0
			return
		}
	}
}

// encode writes the keys, the oldest of each row first, so that decode can add them again.
func (r *recent) encode() []byte {
	var data []byte
	for i := range r.rows {
		for way := recentWays - 1; way >= 0; way-- {
			if key := r.rows[i][way]; key != 0 {
				data = binary.LittleEndian.AppendUint64(data, key)
			}
		}
	}
	return data
}

var errRecent = errors.New("the set of recent attempts is cut short")

func (r *recent) decode(data []byte) error {
	if len(data)%8 != 0 {
		return errRecent
	}
	for ; len(data) > 0; data = data[8:] {
		r.add(binary.LittleEndian.Uint64(data))
	}
	return nil
}

// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/): it needs no seed, so keys are the same in every process
// and checkpoint.
const (
	fnvOffset uint64 = 14695981039346656037
	fnvPrime  uint64 = 1099511628211
)

func hash(sum uint64, text string) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * fnvPrime
	}
	return (sum ^ 0xff) * fnvPrime // ends the field: 0xff is in no UTF-8 text
}

// AttemptKey is the key of an attempt in [State.Attempts].
func AttemptKey(run, task string, number int) uint64 { return attemptKey(run, task, number) }

// attemptKey names one attempt; never 0. Two attempts share a key once in 2^64 pairs.
func attemptKey(run, task string, number int) uint64 {
	sum := hash(hash(fnvOffset, run), task)
	return max(1, (sum^uint64(number))*fnvPrime)
}

// endKey names the end of a run; never 0.
func endKey(run string) uint64 {
	return max(1, hash(hash(fnvOffset, "ended"), run))
}

// recently counts what happened in the last countAge, and up to twice that. The zero value has counted nothing.
type recently struct {
	Since  fact.Instant `json:"since,omitempty"`
	Now    int          `json:"now,omitempty"`
	Before int          `json:"before,omitempty"`
}

// countAge is how old the queue's own count may be: Temporal answers DescribeTaskQueue from a cache of five seconds.
const countAge = fact.Instant(5 * time.Second)

func (r *recently) roll(now fact.Instant) {
	switch age := now - r.Since; {
	case age >= 0 && age < countAge, age < 0 && age > -countAge:
	case age >= countAge && age < 2*countAge:
		r.Before, r.Now, r.Since = r.Now, 0, r.Since+countAge
	default: // long ago, or a clock that stepped back
		*r = recently{Since: now}
	}
}

func (r *recently) add(now fact.Instant, n int) {
	r.roll(now)
	r.Now += n
}

func (r *recently) count(now fact.Instant) int {
	r.roll(now)
	return r.Now + r.Before
}
