package app

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

// admitted returns the address with which a build's worker connects.
func admitted(t *testing.T, server *natstest.Server) string {
	t.Helper()
	return server.Admit("app@b1", wire.App{Name: "app"})
}

func TestAWorkerThatNATSRefusesSaysSoInOneLineWithoutItsPassword(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	parsed, err := url.Parse(admitted(t, server))
	if err != nil {
		t.Fatal(err)
	}
	password, _ := parsed.User.Password()
	parsed.User = url.UserPassword("app@b1", password+"x")
	connection, _, err := connectNATS(parsed.String(), "app", "b1")
	if err == nil {
		connection.Close()
		t.Fatal("a wrong password was taken")
	}
	if text := err.Error(); !strings.Contains(text, "spillway dev") || strings.Contains(text, password) ||
		strings.Contains(text, "\n") {
		t.Errorf("got %q, want one line that says what to do and not the password", text)
	}
	connection, _, err = connectNATS(parsed.String()+"\n", "app", "b1")
	if err == nil {
		connection.Close()
		t.Fatal("an address that is none was taken")
	}
	if strings.Contains(err.Error(), password) {
		t.Errorf("an address that is none: got %q, which tells the password", err)
	}
}

func TestAWorkerThatNATSRefusesLaterEnds(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	connection, closed, err := connectNATS(admitted(t, server), "app", "b1")
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	admitted(t, server) // with another password
	server.Stop()
	server.Restart()
	select {
	case err := <-closed:
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), nats.ErrAuthorization.Error()) {
			t.Errorf("got error %v, want %v", err, nats.ErrAuthorization)
		}
	case <-time.After(5 * time.Minute):
		t.Error("the worker goes on without hints and results")
	}
}
