package predictor_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// TestRecordedStreamsAreDecidedAsBefore compares every decision on every recorded stream with its golden file, byte for
// byte, and the plans and checkpoints by their digests.
func TestRecordedStreamsAreDecidedAsBefore(t *testing.T) {
	t.Parallel()
	for _, s := range streams(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var told strings.Builder
			state := s.replay(t, func(_ predictor.Snapshot, plan predictor.Plan) {
				fmt.Fprintf(&told, "tick %d.%d %s\n", plan.Term, plan.Tick, digest(encode(t, plan)))
				for _, decision := range plan.Decisions {
					fmt.Fprintf(&told, "%s\n", encode(t, decision))
				}
			}, func(sequence uint64, state []byte) {
				fmt.Fprintf(&told, "save %d %s\n", sequence, digest(state))
			})
			fmt.Fprintf(&told, "end %s\n", digest(encode(t, state)))
			compareLines(t, "testdata/streams/"+s.name+".decisions.gz", told.String())
		})
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:4])
}

// compareLines compares text with that of a golden file, and tells the first line that differs; SPILLWAY_UPDATE=1
// writes the file.
func compareLines(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		writeCompressed(t, path, []byte(got))
	}
	want := strings.Split(string(readCompressed(t, path)), "\n")
	for i, line := range strings.Split(got, "\n") {
		switch {
		case i >= len(want):
			t.Fatalf("%s, line %d: got %s, want its end", path, i+1, line)
		case line != want[i]:
			t.Fatalf("%s, line %d:\n got %s\nwant %s", path, i+1, line, want[i])
		}
	}
	if lines := strings.Count(got, "\n") + 1; lines < len(want) {
		t.Fatalf("%s: got its first %d lines, want all %d", path, lines, len(want))
	}
}

func readCompressed(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	expanded, err := io.ReadAll(r)
	if err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	return expanded
}

func writeCompressed(tb testing.TB, path string, data []byte) {
	tb.Helper()
	var small bytes.Buffer
	w, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, small.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// TestRecordedRunsChangeTheirSizesSeldom counts the changes of sizes of every stage within any minute, from when it has
// been sized for half a minute. Slots are another matter: a stream that is decided anew has the attempts of the slots
// that it had (see TestASteadyFlowChangesItsSlotsSeldom).
func TestRecordedRunsChangeTheirSizesSeldom(t *testing.T) {
	t.Parallel()
	for _, s := range streams(t) {
		changes, first := map[string][]float64{}, map[predictor.StageID]float64{}
		s.replay(t, func(snapshot predictor.Snapshot, plan predictor.Plan) {
			now := float64(snapshot.Now.UnixMilli()) / 1000
			for _, d := range plan.Decisions {
				if _, known := first[d.Stage]; !known {
					first[d.Stage] = now
				}
				if d.What == "size" && now-first[d.Stage] > 30 {
					changes[d.Stage.Name] = append(changes[d.Stage.Name], now)
				}
			}
		}, func(uint64, []byte) {})
		for stage, times := range changes {
			if got := most(times); got > 2 {
				t.Errorf("%s: the size of %s changed %d times within a minute, want at most 2", s.name, stage, got)
			}
		}
	}
}
