package logs

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// lineOverhead is what a line costs beside its text: its time and origin, in memory and in its message.
const lineOverhead = 64

// admission says what becomes of a line.
type admission int

const (
	kept    admission = iota
	tooFast           // the program prints faster than its rate
	noRoom            // what was printed cannot be sent, and no more of it can be held
	tooMuch           // the attempt has printed all that it may
)

// limiter decides which lines of an attempt are kept. It is a token bucket of burst bytes that fills by rate bytes a
// second, beside a bound on all of them. Once lines are left out they are until there is room for a second's worth of
// them, so that what is kept are whole passages and not every tenth line.
type limiter struct {
	rate, burst, total float64 // bytes a second; bytes; bytes
	tokens             float64
	at                 time.Time // when tokens was right
	kept               float64
	shut               admission // why lines are left out now
}

func newLimiter(rate, burst, total quantity.Bytes, now time.Time) limiter {
	return limiter{rate: float64(rate), burst: float64(burst), total: float64(total), tokens: float64(burst), at: now}
}

// admit decides about a line of cost bytes at now, when room more bytes can be held.
func (l *limiter) admit(cost, room int, now time.Time) admission {
	if elapsed := now.Sub(l.at).Seconds(); elapsed > 0 {
		l.tokens = min(l.burst, l.tokens+elapsed*l.rate)
		l.at = now
	}
	need, space := float64(cost), float64(room)
	if l.shut != kept {
		need = max(need, min(l.rate, l.burst)) // a second's worth
		space -= min(l.rate, l.burst) / 2
	}
	switch {
	case l.shut == tooMuch || l.kept+float64(cost) > l.total:
		l.shut = tooMuch
	case l.tokens < need:
		l.shut = tooFast
	case space < float64(cost):
		l.shut = noRoom
	default:
		l.shut = kept
		l.tokens -= float64(cost)
		l.kept += float64(cost)
	}
	return l.shut
}

// missing counts lines that were left out one after another, by cause.
type missing [tooMuch + 1]int

// note says in one line what is missing; empty for nothing.
func (m missing) note(o WriterOptions) string {
	var parts []string
	if n := m[tooFast]; n > 0 {
		parts = append(parts, fmt.Sprintf("%s left out: printed faster than %s a second", words.Count(n, "line"), o.Rate))
	}
	if n := m[noRoom]; n > 0 {
		parts = append(parts, words.Count(n, "line")+" left out: the log's stream was slow or away")
	}
	if m[tooMuch] > 0 {
		parts = append(parts, fmt.Sprintf("the attempt has printed %s; nothing that follows is kept", o.PerAttempt))
	}
	return strings.Join(parts, "; ")
}
