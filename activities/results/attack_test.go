package results_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
)

// stored returns the latest message on a subject of the results.
func stored(t *testing.T, js jetstream.JetStream, subject string) *nats.Msg {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.ResultStream)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := stream.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	return &nats.Msg{
		Subject: raw.Subject, Data: raw.Data,
		Header: nats.Header{wire.SignatureHeader: raw.Header[wire.SignatureHeader]},
	}
}

func TestAttackAResultThatTheEngineDidNotSignIsNotTaken(t *testing.T) {
	t.Parallel()
	forgeOutput := func(message *nats.Msg) {
		message.Data = bytes.Replace(message.Data, []byte(`"honest"`), []byte(`"forged"`), 1)
	}
	for _, attack := range []struct {
		name  string
		forge func(t *testing.T, message *nats.Msg)
	}{
		{"with another output", func(_ *testing.T, m *nats.Msg) { forgeOutput(m) }},
		{"with another output, and unsigned", func(_ *testing.T, m *nats.Msg) { forgeOutput(m); m.Header = nil }},
		{"as it was, and unsigned", func(_ *testing.T, m *nats.Msg) { m.Header = nil }},
		{"with a signature of nothing", func(_ *testing.T, m *nats.Msg) {
			forgeOutput(m)
			m.Header.Set(wire.SignatureHeader, "AAAA")
		}},
		{"signed by another key", func(t *testing.T, m *nats.Msg) {
			t.Helper()
			forgeOutput(m)
			m.Header = resigned(t, m.Data)
		}},
		{"that is no result", func(_ *testing.T, m *nats.Msg) { m.Data = []byte("{") }},
		{"with an output stored elsewhere", func(t *testing.T, m *nats.Msg) {
			t.Helper()
			var kept wire.Kept
			if err := json.Unmarshal(m.Data, &kept); err != nil {
				t.Fatal(err)
			}
			kept.Output, kept.Stored = nil, activities.Ref{Digest: kept.Key.Content}
			var err error
			if m.Data, err = json.Marshal(kept); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			t.Parallel()
			r, js, _ := openOn(t, newSigning(t))
			keep(t, r, "run", "train", "b1", `1`, `"honest"`)
			made := wire.ResultSubject(key("train", "b1", `1`), "run")
			message := stored(t, js, made)
			attack.forge(t, message)
			if _, err := js.PublishMsg(t.Context(), message); err != nil {
				t.Fatal(err)
			}
			for name, lookup := range map[string]wire.Lookup{
				"shared": {Shared: true, Keys: []wire.ResultKey{key("train", "b1", `1`)}},
				"retry":  {Run: "run", Keys: []wire.ResultKey{key("train", "b1", `1`)}},
			} {
				if diff := cmp.Diff([]string{""}, find(t, r, lookup)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			if kept, unsigned, err := r.OfRun(t.Context(), "run"); err != nil || len(kept) != 0 || unsigned != 1 {
				t.Errorf("of the run: got %d results, %d unsigned and error %v, want only the unsigned one", len(kept), unsigned,
					err)
			}
		})
	}
}

// resigned returns the headers of a message that somebody has signed with a key of his own.
func resigned(t *testing.T, data []byte) nats.Header {
	t.Helper()
	other, js, _ := openOn(t, results.Signing{Sign: newSigning(t).Sign})
	var kept wire.Kept
	if err := json.Unmarshal(data, &kept); err != nil {
		t.Fatal(err)
	}
	if err := other.Keep(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	message := stored(t, js, wire.ResultSubject(kept.Key, kept.Run))
	if !bytes.Equal(message.Data, data) {
		t.Fatalf("the forger's message is %s, want %s", message.Data, data)
	}
	return message.Header
}

func TestAttackAResultUnderAnotherNameIsNotTaken(t *testing.T) {
	t.Parallel()
	r, js, _ := openOn(t, newSigning(t))
	keep(t, r, "run", "train", "b1", `1`, `"one"`)
	message := stored(t, js, wire.ResultSubject(key("train", "b1", `1`), "run"))
	victim := key("train", "b1", `2`)
	for _, subject := range []string{
		wire.ResultSubject(victim, "run"),                    // another input
		wire.ResultSubject(key("train", "b2", `1`), "run"),   // other code
		wire.ResultSubject(key("train", "b1", `1`), "other"), // another run
		wire.TakenSubject(victim, "run"),                     // another input, as if taken
		wire.TakenSubject(key("train", "b2", `1`), "run"),    // other code, as if taken
	} {
		moved := *message
		moved.Subject = subject
		if _, err := js.PublishMsg(t.Context(), &moved); err != nil {
			t.Fatal(err)
		}
	}
	for name, lookup := range map[string]wire.Lookup{
		"another input":                  {Shared: true, Keys: []wire.ResultKey{victim}},
		"another input, for the retry":   {Run: "run", Keys: []wire.ResultKey{victim}},
		"other code":                     {Shared: true, Keys: []wire.ResultKey{key("train", "b2", `1`)}},
		"another run's retry":            {Run: "other", Keys: []wire.ResultKey{key("train", "b1", `1`)}},
		"another run's retry by b2":      {Run: "other", Keys: []wire.ResultKey{key("train", "b2", `1`)}},
		"a run of which nothing is kept": {Run: "none", Keys: []wire.ResultKey{victim}},
	} {
		if diff := cmp.Diff([]string{""}, find(t, r, lookup)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAttackAWorkerWithoutTheKeyOfItsEngineTakesNothing(t *testing.T) {
	t.Parallel()
	signing := newSigning(t)
	r, js, _ := openOn(t, signing)
	keep(t, r, "run", "train", "b1", `1`, `"one"`)
	lookup := wire.Lookup{Run: "run", Shared: true, Keys: []wire.ResultKey{key("train", "b1", `1`)}}
	if diff := cmp.Diff([]string{`run: "one"`}, find(t, results.New(js, nil, results.Signing{Public: signing.Public}),
		lookup)); diff != "" {
		t.Errorf("with the key (-want +got):\n%s", diff)
	}
	for name, public := range map[string]results.Signing{"no key": {}, "another key": {Public: newSigning(t).Public}} {
		if diff := cmp.Diff([]string{""}, find(t, results.New(js, nil, public), lookup)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAWorkflowWorkerMayLookUpAndTakeResults(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	engine := server.Connect()
	if err := results.EnsureStream(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	signing := newSigning(t)
	keep(t, results.New(engine, nil, signing), "run", "train", "b1", `1`, `"one"`)
	for name, inbox := range map[string]string{
		"of this version":       "_INBOX",
		"of an earlier version": "_INBOX_0123456789abcdef",
	} {
		address := server.Admit("app@b1", wire.App{Name: "app"})
		js := server.Dial(address, nats.CustomInboxPrefix(inbox),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Errorf("%s: %v", name, err) }))
		worker := results.New(js, nil, results.Signing{Public: signing.Public})
		keys := []wire.ResultKey{key("train", "b1", `1`), key("train", "b1", `2`)}
		if diff := cmp.Diff([]string{`run: "one"`, ""},
			find(t, worker, wire.Lookup{Shared: true, Keys: keys, For: name})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{name + `: "one"`, ""}, find(t, worker, wire.Lookup{Run: name, Keys: keys})); diff != "" {
			t.Errorf("what it took, %s (-want +got):\n%s", name, diff)
		}
	}
}

// BenchmarkALookup tells what looking one result up takes on a real server, beside reading the same message alone.
func BenchmarkALookup(b *testing.B) {
	js := natstest.Start(b).Connect()
	if err := results.EnsureStream(b.Context(), js); err != nil {
		b.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.Fatal(err)
	}
	r := results.New(js, nil, results.Signing{Public: public, Sign: func(message []byte) []byte {
		return ed25519.Sign(private, message)
	}})
	kept := wire.Kept{
		Key: key("train", "b1", `1`), Run: "run", Task: "train-0", Output: json.RawMessage(`"one"`),
		At: midnight,
	}
	b.Run("keep", func(b *testing.B) {
		for b.Loop() {
			if err := r.Keep(b.Context(), kept); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			stream, err := js.Stream(b.Context(), wire.ResultStream)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := stream.GetLastMsgForSubject(b.Context(), wire.ResultSubject(kept.Key, "")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("find", func(b *testing.B) {
		for b.Loop() {
			found, err := r.Find(b.Context(), wire.Lookup{Shared: true, Keys: []wire.ResultKey{kept.Key}})
			if err != nil || found[0] == nil {
				b.Fatalf("found %v, error %v", found, err)
			}
		}
	})
}
