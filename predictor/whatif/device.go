package whatif

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Devices compares the classes of GPUs that a stage could have with the one that it has.
type Devices struct {
	Stage string `json:"stage"`
	// Present is what the stage comes to with the slots that it has. Others are what it would come to with as many slots
	// on each other class that hosts have and of which it is known how long its tasks take there, or with all that hosts
	// have room for where these are fewer; sorted by class.
	Present Given   `json:"present"`
	Others  []Given `json:"others,omitempty"`
	// Best is the class of the best of Others; empty where none is better than Present. With a goal that minimises latency
	// the best takes the least time, with one that minimises cost it costs least, with any other its cost and what its
	// time is worth are the least together. What differs by less than a twentieth is not better.
	Best string `json:"best,omitempty"`
	// Untried are the classes that hosts have and on which no task of the stage is known to have ended, sorted. Where the
	// present one is among them, nothing is known to be better.
	Untried []string `json:"untried,omitempty"`
}

// compare compares the devices for the tasks of the stage that do not run yet; some is false where there is nothing to
// compare.
func (s Stage) compare(minimise fact.Objective, hour quantity.Money) (d Devices, some bool) {
	present, possible := s.With(s.Present)
	if !possible || s.Tasks == 0 || s.settled || present.Slots == 0 || len(s.Devices)+len(s.Untried) == 0 {
		return d, false
	}
	d = Devices{Stage: s.Name, Present: present, Untried: s.Untried}
	least := worth(present, minimise, hour) * (1 - leastGain)
	for _, room := range s.Devices {
		if room.Size.DeviceClass == present.Size.DeviceClass {
			continue
		}
		other := s.Present
		other.Slots, other.Size = min(s.Present.Slots, room.Slots), room.Size
		comes, possible := s.With(other)
		if !possible {
			continue
		}
		d.Others = append(d.Others, comes)
		if value := worth(comes, minimise, hour); value < least && !slices.Contains(s.Untried, s.Present.Size.DeviceClass) {
			d.Best, least = room.Size.DeviceClass, value
		}
	}
	return d, len(d.Others)+len(d.Untried) > 0
}

// worth is what is least of the best, where an hour is worth so much.
func worth(g Given, minimise fact.Objective, hour quantity.Money) float64 {
	switch minimise {
	case fact.Latency:
		return g.Seconds
	case fact.Cost:
		return g.Cost
	}
	return g.Cost + g.Seconds/3600*hour.USD()
}

// sayDevices says which class of GPU would be best where that is another one, and of which nothing is known.
func (a *Answer) sayDevices() {
	if a.Elsewhere != nil {
		other := *a
		other.Promise = a.Elsewhere
		a.Sentences = append(a.Sentences, "on other GPUs than it asks for "+other.Verdict())
	}
	for _, d := range a.Devices {
		now := d.Present.Size.DeviceClass
		if now == "" {
			now = "whichever GPU is free"
		}
		i := slices.IndexFunc(d.Others, func(g Given) bool { return d.Best != "" && g.Size.DeviceClass == d.Best })
		if i >= 0 {
			best := d.Others[i]
			a.Sentences = append(a.Sentences, fmt.Sprintf("on %s %s would take %s for %s instead of %s for %s on %s%s", d.Best,
				d.Stage, words.Seconds(best.Seconds), usd(best.Cost), words.Seconds(d.Present.Seconds), usd(d.Present.Cost), now,
				fewer(best, d.Present)))
		}
		if len(d.Untried) > 0 {
			a.Sentences = append(a.Sentences, fmt.Sprintf("how long %s takes on %s is not known: no task of it has ended there",
				d.Stage, strings.Join(d.Untried, " and on ")))
		}
	}
}

// fewer says that hosts have not as many slots.
func fewer(best, present Given) string {
	if best.Slots >= present.Slots {
		return ""
	}
	return fmt.Sprintf(", with %s instead of %d", words.Count(best.Slots, "slot"), present.Slots)
}
