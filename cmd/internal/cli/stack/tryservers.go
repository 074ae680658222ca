package stack

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// tryServers asks each server that the settings name for what the engine will ask of it, and tries the ports.
func tryServers(ctx context.Context, all *told, state string) (findings []finding) {
	lives, err := access.EngineLives(state)
	running := err == nil && lives
	for _, name := range []string{"http-port", "temporal-port", "ui-port", "nats-port"} {
		if port := all.value(name); port != "" {
			findings = append(findings, tryPort(ctx, name, net.JoinHostPort("127.0.0.1", port), running))
		}
	}
	findings = append(findings, tryExternal(ctx, all)...)
	if address := all.value("listen"); address != "" {
		findings = append(findings, tryPort(ctx, "listen", address, running))
	}
	if webhooks := all.flags.Lookup("alert-webhook"); webhooks.Changed && !all.wrong[webhooks.Name] {
		findings = append(findings, finding{
			webhooks.Name, fine, display.Count(len(valuesOf(webhooks)), "URL") + ", read and not posted to", "",
		})
	}
	if server := all.value("join"); server != "" {
		findings = append(findings, tryJoin(ctx, server))
	}
	if location := all.value("artifacts"); location != "" && location != engine.InFiles {
		findings = append(findings, tryArtifacts(ctx, location)...)
	}
	if file := all.value("ledger-url-file"); file != "" {
		findings = append(findings, tryLedger(ctx, file))
	}
	return findings
}

// tryLedger looks whether the database can have the ledger, and changes nothing there.
func tryLedger(ctx context.Context, file string) finding {
	found, err := ledgerstore.Probe(ctx, func() (string, error) { return engine.LedgerURL(file) })
	if err != nil {
		return finding{"ledger-url-file", failed, err.Error(), fault.AdviceOf(err)}
	}
	return finding{"ledger-url-file", fine, found, ""}
}

// tryLimit bounds how long one server may take.
const tryLimit = 10 * time.Second

// tryJoin looks whether a server speaks TLS where an agent would join. Which server it is an agent knows by its token
// or by what it keeps, and shows it nothing before; so does this.
func tryJoin(ctx context.Context, server string) finding {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	at, err := url.Parse(server)
	if err == nil && (at.Scheme != "https" || at.Port() == "") {
		err = errors.New("it is no URL such as https://server.example.com:7475")
	}
	if err != nil {
		return finding{"join", failed, err.Error(), "write what `spillway server` prints"}
	}
	dialer := &tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, ServerName: at.Hostname(), MinVersion: tls.VersionTLS13,
	}}
	connection, err := dialer.DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return finding{
			"join", failed, at.Host + ": " + cause(err), "look whether the server runs, and whether a firewall is between",
		}
	}
	if err := connection.Close(); err != nil {
		return finding{"join", failed, err.Error(), ""}
	}
	return finding{"join", fine, at.Host + " answers; which server it is the agent checks when it joins", ""}
}

// tryPort listens on a port for a moment.
func tryPort(ctx context.Context, setting, address string, running bool) finding {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		if err := listener.Close(); err != nil {
			return finding{setting, failed, err.Error(), ""}
		}
		return finding{setting, fine, address + " is free", ""}
	case running:
		return finding{setting, notice, address + " is taken, as it is by the engine that runs on the state directory", ""}
	default:
		return finding{
			setting, failed, address + ": " + cause(err),
			"stop what listens there, or give another; `ss -ltnp` tells what does",
		}
	}
}

// cause is the last of an error's causes, without what was tried, which the message says.
func cause(err error) string {
	if operation, ok := errors.AsType[*net.OpError](err); ok {
		return operation.Err.Error()
	}
	return err.Error()
}

// tryArtifacts writes, reads and deletes an object in the bucket.
func tryArtifacts(ctx context.Context, location string) []finding {
	notes, err := engine.TryArtifacts(ctx, location)
	if err != nil {
		return []finding{{
			"artifacts", failed, strings.ReplaceAll(err.Error(), "\n", "; "), fault.AdviceOf(err),
		}}
	}
	findings := []finding{{"artifacts", fine, location + ": an object was written, read and deleted", ""}}
	for _, note := range notes {
		findings = append(findings, finding{"artifacts", notice, note, ""})
	}
	return findings
}
