package predictor_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestARecordThatComesAgainChangesNoState folds Records of few attempts, and after each says again what one of them
// said: as it was, or by another host, with another outcome, and costs and times that may be none.
func TestARecordThatComesAgainChangesNoState(t *testing.T) {
	t.Parallel()
	encoded := func(t *rapid.T, state predictor.State) []byte {
		text, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	rapid.Check(t, func(t *rapid.T) {
		state := aState(t)
		state = predictor.Fold(state, started("r1", 0, predictor.Goal{Budget: quantity.USD}))
		var told []predictor.Record
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			event := anEvent(t)
			state = predictor.Fold(state, event)
			if one, is := event.(predictor.Record); is {
				told = append(told, one)
			}
			if len(told) == 0 {
				continue
			}
			late := rapid.SampledFrom(told).Draw(t, "which")
			late.Host = rapid.SampledFrom([]string{late.Host, "another", ""}).Draw(t, "by whom")
			late.Outcome = rapid.SampledFrom([]predictor.Outcome{
				late.Outcome, predictor.Succeeded, predictor.Failed, predictor.Refused, predictor.Lost,
			}).Draw(t, "another outcome")
			late.Cost = quantity.Money(rapid.SampledFrom([]int64{
				int64(late.Cost), -1, math.MaxInt64, math.MinInt64,
			}).Draw(t, "another cost"))
			late.Usage.Wall = time.Duration(rapid.SampledFrom([]int64{
				int64(late.Usage.Wall), -1, math.MaxInt64,
			}).Draw(t, "another wall"))
			late.At = rapid.SampledFrom([]time.Time{late.At, {}, after(-1e6), after(50)}).Draw(t, "another time")
			before := encoded(t, state)
			state = predictor.Fold(state, late)
			if now := encoded(t, state); !bytes.Equal(before, now) {
				t.Fatalf("it came again: %+v\n%s\n%s", late, before, now)
			}
		}
	})
}
