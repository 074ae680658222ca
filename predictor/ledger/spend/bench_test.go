package spend

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// BenchmarkBillOfAWeek is what a bill of 20 hosts costs that were held by four stages in every minute of three and a
// half days: about as much as is kept.
func BenchmarkBillOfAWeek(b *testing.B) {
	book := New()
	const hosts, minutes = 20, 3600
	owners := []*Owner{prep, train, other, {Run: "r4", Stage: "app/report"}}
	for h := range hosts {
		name := fmt.Sprint("h", h)
		book.Present(present(name, 0, minutes*time.Minute, 1_234_567_890_123))
		for m := range minutes {
			at := time.Duration(m) * time.Minute
			for i, owner := range owners {
				book.Hold(holding(owner, name, at, at+time.Duration(i+1)*time.Second, 1000))
			}
		}
	}
	if spans := len(spent(book, 0, math.MaxInt64)); spans != hosts*len(owners) {
		b.Fatalf("%d stages pay for hosts, want %d", spans, hosts*len(owners))
	}
	b.ReportAllocs()
	for b.Loop() {
		book.Each(0, math.MaxInt64, nil, func(Span) {})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(hosts*minutes), "ns/minute")
}
