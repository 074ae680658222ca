package ledgerstore

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
)

// mostText is the length in bytes of the longest name of a pipeline, of a host, and of the two parts of a stage's, that
// the ledger keeps as it is. A row of an index of PostgreSQL holds 2,704 bytes, and what is summed up together is known
// by all of them and by a run, of at most wire.MaxName: one long name would keep the ledger from going on.
const mostText = 400

// fit makes a name one that every database keeps: UTF-8 without the character 0, which PostgreSQL has in no text, and
// not longer than most bytes. One that was longer ends with a hash of it, so that it stays another than others.
func fit(name string, most int) string {
	name = strings.ReplaceAll(strings.ToValidUTF8(name, "\uFFFD"), "\x00", "\uFFFD")
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "~" + hex.EncodeToString(sum[:8])
	cut := most - len(end)
	for !utf8.RuneStart(name[cut]) {
		cut--
	}
	return name[:cut] + end
}

// fitEvent makes the names of an event ones that every database keeps.
func fitEvent(event predictor.Event) predictor.Event {
	stage := func(of predictor.StageID) predictor.StageID {
		of.App, of.Build, of.Name = fit(of.App, mostText/2), fit(of.Build, mostText/2), fit(of.Name, mostText/2)
		return of
	}
	switch e := event.(type) {
	case predictor.RunStarted:
		e.Run, e.Pipeline, e.App = fit(e.Run, wire.MaxName), fit(e.Pipeline, mostText), fit(e.App, mostText/2)
		return e
	case predictor.RunEnded:
		e.Run = fit(e.Run, wire.MaxName)
		return e
	case predictor.GoalChanged:
		e.Run = fit(e.Run, wire.MaxName)
		return e
	case predictor.Record:
		e.Run, e.Pipeline = fit(e.Run, wire.MaxName), fit(e.Pipeline, mostText)
		e.Host, e.Stage = fit(e.Host, mostText), stage(e.Stage)
		if e.Members = slices.Clone(e.Members); len(e.Members) > gang.MostHosts {
			e.Members = e.Members[:gang.MostHosts] // what is left out is its own host's
		}
		for i := range e.Members {
			e.Members[i].Host = fit(e.Members[i].Host, mostText)
		}
		return e
	case predictor.Reused:
		e.Run, e.From, e.Stage = fit(e.Run, wire.MaxName), fit(e.From, wire.MaxName), stage(e.Stage)
		return e
	case predictor.HostHeld:
		e.Host = fit(e.Host, mostText)
		return e
	default:
		return event
	}
}
