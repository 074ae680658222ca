package memory

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Days is what a team has spent on each of the last days, the newest last; at most mostDays.
type Days []Day

// Day is what was spent on one day in UTC, the days being counted since 1970. What an attempt costs is spent on the day
// on which it ends.
type Day struct {
	Number int64          `json:"day"`
	Spent  quantity.Money `json:"spent"`
}

const (
	// mostDays is more than one, as hosts tell by clocks of their own around midnight.
	mostDays  = 3
	mostTeams = 1024
)

// dayOf is the number of the day of an instant.
func dayOf(at fact.Instant) int64 { return int64(at) / int64(24*time.Hour) }

// paid notes what an attempt of a team has cost that ended at a time. A clock that is ahead spends on the next day at
// most, so that it cannot take today off what is remembered.
func (m *State) paid(team string, at fact.Instant, cost quantity.Money) {
	if cost <= 0 || at <= 0 {
		return
	}
	day := dayOf(at)
	if m.passed > 0 {
		day = min(day, dayOf(m.passed)+1)
	}
	days, known := m.spent[team]
	if !known && team == "" {
		return // nobody has asked: see Count
	}
	if !known && len(m.spent) >= mostTeams {
		oldest := slices.MinFunc(slices.Sorted(maps.Keys(m.spent)), func(a, b string) int {
			return int(m.spent[a].newest() - m.spent[b].newest())
		})
		delete(m.spent, oldest)
	}
	place, found := slices.BinarySearchFunc(days, day, func(d Day, number int64) int { return int(d.Number - number) })
	if !found {
		days = slices.Insert(days, place, Day{Number: day})
	}
	days[place].Spent = min(days[place].Spent+cost, fact.MaxCost)
	if days = days[max(0, len(days)-mostDays):]; !known {
		team = strings.Clone(team)
	}
	m.spent[team] = days
}

// Count has what the default team spends remembered from now on. That of other teams always is; where there are no
// teams, all is the default team's, and nobody asks.
func (m *State) Count() {
	if _, known := m.spent[""]; !known {
		m.spent[""] = Days{}
	}
}

func (d Days) newest() int64 {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)-1].Number
}

// SpentBy is what a team has spent on the day of now, in UTC.
func (m *State) SpentBy(team string, now fact.Instant) quantity.Money {
	for _, day := range m.spent[team] {
		if day.Number == dayOf(now) {
			return day.Spent
		}
	}
	return 0
}
