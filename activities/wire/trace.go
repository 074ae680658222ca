package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// TraceContext says where in which trace something happens, as W3C Trace Context does
// (https://www.w3.org/TR/trace-context/). The zero value is no place.
type TraceContext struct {
	// Trace and Span are the IDs; neither is all zeros.
	Trace [16]byte
	Span  [8]byte
	// Sampled says that whoever made the span keeps it.
	Sampled bool
}

// traceparent has 4 fields; the IDs are in the second and third, flags in the last.
const (
	traceparentFields = 4
	traceparentLength = 55
	sampledFlag       = 0x01
)

// ParseTraceparent reads the header of W3C Trace Context; ok is false for what that standard calls invalid. Of versions
// after 00 it reads what 00 has.
func ParseTraceparent(text string) (place TraceContext, ok bool) {
	if len(text) < traceparentLength || len(text) > traceparentLength &&
		(text[traceparentLength] != '-' || strings.HasPrefix(text, "00")) {
		return TraceContext{}, false
	}
	fields := strings.Split(text[:traceparentLength], "-")
	if len(fields) != traceparentFields {
		return TraceContext{}, false
	}
	var version, flags [1]byte
	for i, into := range [][]byte{version[:], place.Trace[:], place.Span[:], flags[:]} {
		if len(fields[i]) != 2*len(into) || strings.ToLower(fields[i]) != fields[i] {
			return TraceContext{}, false
		}
		if _, err := hex.Decode(into, []byte(fields[i])); err != nil {
			return TraceContext{}, false
		}
	}
	if version[0] == 0xff || place.Trace == [16]byte{} || place.Span == [8]byte{} {
		return TraceContext{}, false
	}
	place.Sampled = flags[0]&sampledFlag != 0
	return place, true
}

// Traceparent writes the header that ParseTraceparent reads; it is empty for no place.
func (c TraceContext) Traceparent() string {
	if c.Trace == [16]byte{} || c.Span == [8]byte{} {
		return ""
	}
	flags := "-00"
	if c.Sampled {
		flags = "-01"
	}
	return "00-" + hex.EncodeToString(c.Trace[:]) + "-" + hex.EncodeToString(c.Span[:]) + flags
}

// TraceID is the trace of a run whose event brought none: the same for everybody who knows the run, so that nobody
// needs to be told.
func TraceID(run string) [16]byte { return [16]byte(digest("trace", run)[:16]) }

// RunTrace is the trace of a run, and whether its spans are kept: those of the trace context that came with its event
// when that is a valid one, and otherwise TraceID, kept.
func RunTrace(run, traceparent string) (trace [16]byte, sampled bool) {
	if place, ok := ParseTraceparent(traceparent); ok {
		return place.Trace, place.Sampled
	}
	return TraceID(run), true
}

// RunSpanID is the span of a run, TaskSpanID that of one of its tasks.
func RunSpanID(run string) [8]byte { return spanID("run", run) }

// TaskSpanID is the span of a task.
func TaskSpanID(run, task string) [8]byte { return spanID("task", run, task) }

// AttemptSpanID is the span of an attempt of a task, from 1 on. A task that functions refused counts its attempts from
// 1 again on the queue that only the pool polls, hence poolOnly.
func AttemptSpanID(run, task string, attempt int, poolOnly bool) [8]byte {
	return spanID("attempt", run, task, strconv.Itoa(attempt), strconv.FormatBool(poolOnly))
}

// AttemptTraceparent is what user code finds in the environment variable TRACEPARENT, so that spans of its own lie
// below its attempt; traceparent is what came with the run's event, empty for none.
func AttemptTraceparent(run, traceparent, task string, attempt int, poolOnly bool) string {
	trace, sampled := RunTrace(run, traceparent)
	return TraceContext{Trace: trace, Span: AttemptSpanID(run, task, attempt, poolOnly), Sampled: sampled}.Traceparent()
}

// SpanID is a span below another one, by what it is: the same whenever both are.
func SpanID(parent [8]byte, name string) [8]byte { return spanID(name, string(parent[:])) }

func spanID(kind string, parts ...string) [8]byte { return [8]byte(digest(kind, parts...)[:8]) }

// digest hashes the parts with their lengths, so that no two lists of parts make the same text. That all of a digest's
// first 8 bytes are 0, which no ID may be, is as likely as that two spans of a run share an ID: never.
func digest(kind string, parts ...string) []byte {
	text := make([]byte, 0, 128)
	text = append(text, "spillway "...)
	text = append(text, kind...)
	for _, part := range parts {
		text = append(text, ' ')
		text = strconv.AppendInt(text, int64(len(part)), 10)
		text = append(text, ' ')
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}
