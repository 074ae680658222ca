package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/external"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

// streamLimit bounds how long a stream may take that is made to try.
const streamLimit = 10 * time.Second

// tryExternal asks the Temporal, the NATS and the identity provider that the settings name what the engine asks them at
// its start.
func tryExternal(ctx context.Context, all *told) (findings []finding) {
	temporal, nats := all.stack.Servers()
	if temporal.Address != "" && !all.anyWrong("temporal-") {
		findings = append(findings, tryTemporal(ctx, temporal)...)
	}
	if len(nats.URLs) > 0 && !all.anyWrong("nats-") {
		findings = append(findings, tryNATS(ctx, nats)...)
	}
	return append(findings, trySignIn(ctx, all)...)
}

// anyWrong reports whether something is wrong with a setting whose name begins so: its server is not asked then.
func (a *told) anyWrong(prefix string) bool {
	for name := range a.wrong {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// hearing gathers what is logged while something is tried.
type hearing struct {
	mu      sync.Mutex
	records []slog.Record // guarded by mu
}

// Enabled implements slog.Handler.
func (h *hearing) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (h *hearing) Handle(_ context.Context, record slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records = append(h.records, record)
	return nil
}

// WithAttrs implements slog.Handler; what is tried adds none.
func (h *hearing) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements slog.Handler.
func (h *hearing) WithGroup(string) slog.Handler { return h }

// findings are what was heard: what works, and what could be better.
func (h *hearing) findings(setting string) (findings []finding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, record := range h.records {
		told := []string{record.Message}
		record.Attrs(func(attribute slog.Attr) bool {
			told = append(told, strings.ReplaceAll(attribute.Key, "_", " ")+" "+attribute.Value.String())
			return true
		})
		found := finding{setting, fine, strings.Join(told, ", "), ""}
		if record.Level >= slog.LevelWarn {
			found.Severity = notice
		}
		findings = append(findings, found)
	}
	return findings
}

// tryTemporal connects as the engine does at its start.
func tryTemporal(ctx context.Context, config engine.TemporalConfig) []finding {
	heard := &hearing{}
	opened, err := external.OpenTemporal(ctx, config, slog.New(heard))
	if err == nil {
		err = opened.Close()
	}
	if err != nil {
		return append(heard.findings("temporal-address"), finding{
			"temporal-address", failed, oneLine(err), fault.AdviceOf(err),
		})
	}
	return heard.findings("temporal-address")
}

// tryNATS connects as the engine does at its start, and keeps a stream in as many replicas for a moment.
func tryNATS(ctx context.Context, config engine.NATSConfig) []finding {
	heard := &hearing{}
	opened, err := external.OpenNATS(ctx, config, slog.New(heard))
	if err != nil {
		return append(heard.findings("nats-url"), finding{"nats-url", failed, oneLine(err), fault.AdviceOf(err)})
	}
	replicas := max(config.Replicas, 1)
	err = tryStream(ctx, opened, replicas)
	findings := heard.findings("nats-url")
	if err := errors.Join(err, opened.Close()); err != nil {
		return append(findings, finding{
			"nats-replicas", failed, fmt.Sprintf("a stream of %s cannot be made: %s", display.Count(replicas, "replica"),
				oneLine(err)),
			"give as many as servers of the cluster have JetStream and room, and let the engine's user make streams",
		})
	}
	return append(findings, finding{
		"nats-replicas", fine, fmt.Sprintf("a stream of %s was made and removed", display.Count(replicas, "replica")), "",
	})
}

// tryStream makes a stream in memory, and removes it.
func tryStream(ctx context.Context, opened *external.NATS, replicas int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	connection, err := opened.ConnectNATS("spillway config check")
	if err != nil {
		return err
	}
	defer connection.Close()
	streams, err := jetstream.New(connection)
	if err != nil {
		return err
	}
	name := "spillway-config-check-" + rand.Text()
	if _, err := streams.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Storage: jetstream.MemoryStorage, Replicas: replicas, MaxBytes: 1 << 10,
	}); err != nil {
		return err
	}
	return streams.DeleteStream(context.WithoutCancel(ctx), name)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// trySignIn asks the identity provider that the settings name for what it says of itself, and for its keys.
func trySignIn(ctx context.Context, all *told) []finding {
	const setting = "oidc-issuer"
	if all.value(setting) == "" || all.anyWrong("oidc-") {
		return nil
	}
	options, err := all.stack.SignIn()
	if err != nil {
		return []finding{{setting, failed, oneLine(err), fault.AdviceOf(err)}}
	}
	says, err := signin.Check(ctx, *options)
	if err != nil {
		text, advice, _ := strings.Cut(oneLine(err), "; ")
		return []finding{{setting, failed, text, advice}}
	}
	found := finding{setting, fine, fmt.Sprintf("people sign in at %s, which is asked for %s", says.Endpoint,
		strings.Join(says.Scopes, " ")), ""}
	return []finding{found}
}
