package ledger

import (
	"math"
	"strings"
	"time"
	"unique"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// attempt is a timeline.Attempt in little room: times are nanoseconds since 1970, 0 when nobody told, and what many
// attempts have in common is held once.
type attempt struct {
	stage                               *stage
	task, failure                       string
	scheduled, admitted, started, ended int64
	wall, fetch, publish, settle, cpu   time.Duration
	peak, gpuPeak, predictedMemory      quantity.Bytes
	predictedWall                       float64
	memoryBand, wallBand                band
	values                              []float32 // of the features of stage; see stage.features
	cost                                quantity.Money
	manner                              unique.Handle[manner]
	grant                               unique.Handle[quantity.Size]
	number                              int32
	recorded                            bool
}

// band is the middle 80 percent of a prediction, which has its middle elsewhere.
type band struct{ low, high float32 }

// around is the prediction with its middle; the zero Interval where nothing was predicted.
func (b band) around(mid float64) predictor.Interval {
	if mid <= 0 {
		return predictor.Interval{}
	}
	return predictor.Interval{Low: min(float64(b.low), mid), Mid: mid, High: max(float64(b.high), mid)}
}

// bandOf is the band of a sound prediction.
func bandOf(i predictor.Interval) band {
	return band{float32(min(i.Low, math.MaxFloat32)), float32(min(i.High, math.MaxFloat32))}
}

// manner is where and how an attempt ran and ended.
type manner struct {
	venue   predictor.Venue
	host    string
	outcome predictor.Outcome
	cause   predictor.Cause
	cold    bool
	gpus    string // their UUIDs, with a comma between
}

// uuids are GPUs as a manner has them: of no more than a host can have.
func uuids(gpus []string) string {
	const most = 128
	return clip(strings.Join(gpus[:min(len(gpus), most)], ","), most*len("GPU-00000000-0000-0000-0000-000000000000,"))
}

const (
	// maxFailure bounds the text that says why an attempt failed, in bytes: a run of 10,000 failures shall not be kept in
	// full.
	maxFailure = 200
	// longest is the longest that an attempt is taken to have waited or held its grant; what says more than that is a
	// clock gone wrong.
	longest = 366 * 24 * time.Hour
	// mostMemory is more than any host has.
	mostMemory = 1 << 50
)

// begin fills in what is known once the user's code is about to run. AttemptStarted.Queue counts from scheduling to
// there, for a later attempt of a task from when a supervisor took it from the queue (Temporal does not tell when it
// was put back); admission is somewhere between, and only the Record will say where.
func (a *attempt) begin(e predictor.AttemptStarted) {
	a.started = spend.Nanoseconds(e.At)
	a.scheduled = max(0, a.started-int64(max(0, min(e.Queue, longest))))
	a.manner = unique.Make(manner{venue: e.Venue, host: e.Host, gpus: uuids(e.GPUs)})
	a.grant = unique.Make(e.Grant)
}

// lose ends an attempt of which no Record came before the next of its task was taken, at when: its host had died by
// then.
func (a *attempt) lose(when int64) {
	lost := a.manner.Value()
	lost.outcome, lost.cause = predictor.Lost, predictor.CauseHostLost
	a.manner, a.ended = unique.Make(lost), max(a.started, when)
}

// record fills in what a Record says.
//
// Its times come from two clocks: ScheduledAt is Temporal's (for later attempts, when the attempt was taken from the
// queue), and Queue counts from there to the admission, or at functions to when the worker turned to the attempt.
// Start, Usage.Wall, Settle and At are the supervisor's: there, Start, Wall and Settle lie between admission and At. So
// an attempt is never admitted later than At less their sum, however far the clocks are apart.
func (a *attempt) record(e predictor.Record) {
	start, wall := max(0, min(e.Start, longest)), max(0, min(e.Usage.Wall, longest))
	a.ended = max(1, spend.Nanoseconds(e.At))
	settle := max(0, min(e.Settle, longest))
	latest := a.ended - int64(start+wall+settle)
	admitted := latest
	if !e.ScheduledAt.IsZero() {
		admitted = min(latest, spend.Nanoseconds(e.ScheduledAt.Add(max(0, min(e.Queue, longest)))))
	}
	if a.ended-admitted > int64(longest) {
		admitted = latest
	}
	a.admitted = max(1, admitted)
	a.started = min(a.admitted+int64(start), a.ended)
	a.scheduled = a.admitted
	switch {
	case e.ScheduledAt.IsZero():
		a.scheduled -= int64(max(0, min(e.Queue, longest)))
	default:
		a.scheduled = min(a.scheduled, spend.Nanoseconds(e.ScheduledAt))
	}
	a.scheduled = max(1, a.scheduled)
	a.wall, a.fetch, a.publish, a.settle, a.cpu = wall, max(0, e.Usage.Fetch), max(0, e.Usage.Publish), settle,
		max(0, e.Usage.CPU)
	a.peak, a.cost = max(0, min(e.Usage.PeakMemory, mostMemory)), max(0, e.Cost)
	a.gpuPeak = max(0, min(e.Usage.GPUPeakMemory, mostMemory))
	a.predictedWall, a.predictedMemory, a.wallBand, a.memoryBand = 0, 0, band{}, band{}
	if sound(e.Predicted.Wall) {
		a.predictedWall, a.wallBand = e.Predicted.Wall.Mid, bandOf(e.Predicted.Wall)
	}
	if expected := memoryPrediction(e); sound(expected) {
		a.predictedMemory, a.memoryBand = quantity.Bytes(min(expected.Mid, mostMemory)), bandOf(expected)
	}
	a.failure = clip(e.Error, maxFailure)
	gpus := uuids(e.GPUs)
	if gpus == "" && a.manner != (unique.Handle[manner]{}) { // whoever finds an attempt lost knows none
		gpus = a.manner.Value().gpus
	}
	a.manner = unique.Make(manner{
		venue: e.Venue, host: e.Host, outcome: e.Outcome, cause: e.Cause, cold: e.Cold, gpus: gpus,
	})
	if !e.Grant.IsZero() || a.grant == (unique.Handle[quantity.Size]{}) { // whoever finds an attempt lost knows no size
		a.grant = unique.Make(e.Grant)
	}
	a.recorded = true
}

// clip returns a text, of a long one the start, copied so that the whole can be forgotten, and says that it was cut.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && text[most]&0xC0 == 0x80 { // within a character
		most--
	}
	return text[:most] + "…"
}

// view is the attempt as others see it. Of an attempt that was going on when its run ended, over then, nothing more was
// heard: it is lost, or was cancelled with its run.
func (a *attempt) view(run *Detail) timeline.Attempt {
	m := a.manner.Value()
	ended := a.ended
	if ended == 0 && run.state != predictor.RunRunning {
		ended = max(a.started, spend.Nanoseconds(run.course.EndedAt))
		m.outcome, m.cause = run.left()
	}
	var gpus []string
	if m.gpus != "" {
		gpus = strings.Split(m.gpus, ",")
	}
	return timeline.Attempt{
		Stage: a.stage.id.Name, Task: a.task, Number: int(a.number), Venue: m.venue, Host: m.host,
		Outcome: m.outcome, Cause: m.cause, Error: a.failure,
		ScheduledAt: spend.Time(a.scheduled), AdmittedAt: spend.Time(a.admitted), StartedAt: spend.Time(a.started),
		EndedAt: spend.Time(ended),
		Wall:    a.wall, Fetch: a.fetch, Publish: a.publish, Settle: a.settle, Cold: m.cold, Grant: a.grant.Value(),
		CPU:           a.cpu,
		PeakMemory:    a.peak,
		GPUs:          gpus,
		GPUPeakMemory: a.gpuPeak,
		PredictedWall: a.predictedWall, PredictedMemory: a.predictedMemory, Cost: a.cost,
	}
}
