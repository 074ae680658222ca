// Package natsaccess lets the workflow workers of users' builds into an embedded NATS server: each into an account of
// its own, whose requests pass a door. NATS checks on which subject a client publishes, but neither where it wants the
// answer nor where its consumers deliver; the door does.
//
//	worker -> account of its build -> service import -> Door -> account of the engine -> JetStream
//
// An account is a world of subjects of its own, so that a build hears nothing but answers to itself:
// https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts
package natsaccess

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// prefix begins the subjects, in the engine's account, on which requests of builds come: behind it are the number of
	// the build and the subject that was asked for.
	prefix = "spillway.door."
	// answerPrefix begins the subjects that NATS makes up for answers to another account. No client can have its answers
	// sent there by itself.
	answerPrefix = "_R_."
	// inbox begins the subjects on which the door takes the answers; behind it is what stands behind answerPrefix.
	inbox          = "spillway.answers."
	createConsumer = "$JS.API.CONSUMER.CREATE."
	// nextMessage begins requests that do not pass the door: there is no harm in them, they have an answer for each
	// message, and each asks to be acknowledged, which a client cannot hand on.
	nextMessage = "$JS.API.CONSUMER.MSG.NEXT."
)

// Door passes on what builds may ask. Its methods may be called concurrently.
type Door struct {
	server     *natsserver.Server
	connection *nats.Conn

	mu       sync.Mutex
	accounts map[string]*natsserver.Account // by build; guarded by mu
}

// Open opens the door of a server that runs. Clients that come over a pipe must be let into the server's global account
// with all rights. The caller closes it.
func Open(server *natsserver.Server) (*Door, error) {
	connection, err := nats.Connect("", nats.InProcessServer(server), nats.MaxReconnects(-1), nats.Name("door of builds"))
	if err != nil {
		return nil, fmt.Errorf("open the door of builds: %w", err)
	}
	d := &Door{server: server, connection: connection, accounts: map[string]*natsserver.Account{}}
	_, errRequests := connection.Subscribe(prefix+">", d.pass)
	_, errAnswers := connection.Subscribe(inbox+">", d.answer)
	if err := errors.Join(errRequests, errAnswers, connection.Flush()); err != nil {
		connection.Close()
		return nil, fmt.Errorf("open the door of builds: %w", err)
	}
	return d, nil
}

// Close ends the door: what builds ask from then on has no answer.
func (d *Door) Close() { d.connection.Close() }

// User returns the user as whom a client of a build is to be registered. It may publish on these subjects (wildcards
// stand for what they match), and hears answers to what it asked, on subjects of its choice. The subjects of the first
// call for a build are those of all later ones.
func (d *Door) User(build string, subjects []string) (*natsserver.User, error) {
	account, err := d.account(build, subjects)
	if err != nil {
		return nil, fmt.Errorf("let build %s into NATS: %w", build, err)
	}
	return &natsserver.User{Username: build, Account: account, Permissions: &natsserver.Permissions{
		Publish: &natsserver.SubjectPermission{Allow: subjects},
	}}, nil
}

func (d *Door) account(build string, subjects []string) (*natsserver.Account, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if account, known := d.accounts[build]; known {
		return account, nil
	}
	account, _ := d.server.LookupOrRegisterAccount("build " + build)
	engine := d.server.GlobalAccount()
	door := prefix + strconv.Itoa(len(d.accounts)) + "."
	for _, subject := range slices.Compact(slices.Sorted(slices.Values(subjects))) {
		to, answers := door+subject, natsserver.Singleton
		if strings.HasPrefix(subject, nextMessage) {
			to, answers = subject, natsserver.Streamed
		}
		err := engine.AddServiceExportWithResponse(to, answers, []*natsserver.Account{account})
		if err == nil {
			err = account.AddServiceImport(engine, subject, to)
		}
		if err != nil {
			return nil, fmt.Errorf("subject %s: %w", subject, err)
		}
	}
	d.accounts[build] = account
	return account, nil
}

// pass hands a request on, as it is or harmless, or answers why not. Where no answer can be given safely there is none.
func (d *Door) pass(request *nats.Msg) {
	_, subject, _ := strings.Cut(strings.TrimPrefix(request.Subject, prefix), ".")
	asker, answerable := strings.CutPrefix(request.Reply, answerPrefix)
	if request.Reply != "" && !answerable {
		return
	}
	passed, err := harmless(subject, request)
	switch {
	case err == nil && answerable:
		passed.Reply = inbox + asker
	case err != nil && answerable:
		passed = refusal(request.Reply, err)
	case err != nil:
		return
	}
	d.publish(passed)
}

// answer hands an answer back.
func (d *Door) answer(answer *nats.Msg) {
	d.publish(&nats.Msg{
		Subject: answerPrefix + strings.TrimPrefix(answer.Subject, inbox), Header: answer.Header,
		Data: answer.Data,
	})
}

// publish fails when the door is closed: then nobody waits for the answer.
func (d *Door) publish(message *nats.Msg) { _ = d.connection.PublishMsg(message) }

// harmless returns the request as it goes on to subject, or an error that says why it does not.
func harmless(subject string, request *nats.Msg) (*nats.Msg, error) {
	passed := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: request.Data}
	for name, values := range request.Header {
		// By others of its own, NATS is asked for more than to keep a message: to trace it, to schedule another, to delete
		// what is there.
		if wire.IsBuildHeader(name) {
			passed.Header[name] = values
		}
	}
	if id := request.Header.Get(wire.MessageIDHeader); id != "" && !wire.IsBuildMessageID(subject, id) {
		return nil, fmt.Errorf("the message ID %q is not one for %s", id, subject)
	}
	if strings.HasPrefix(subject, createConsumer) {
		return passed, fetched(passed)
	}
	return passed, nil
}

// fetched checks that a request makes a consumer whose messages are fetched, and that ends when nobody fetches.
func fetched(request *nats.Msg) error {
	var asked struct {
		Stream string                   `json:"stream_name"`
		Config jetstream.ConsumerConfig `json:"config"`
		Action string                   `json:"action"`
	}
	if err := json.Unmarshal(request.Data, &asked); err != nil {
		return fmt.Errorf("the request for a consumer cannot be read: %w", err)
	}
	if c := asked.Config; c.DeliverSubject != "" || c.DeliverGroup != "" || c.Durable != "" {
		return errors.New("a build's consumer has no name that lasts, and no subject to which it delivers: fetch " +
			"its messages")
	}
	encoded, err := json.Marshal(asked) // what was not read does not go on
	request.Data = encoded
	return err
}

// refusal is the answer, in JetStream's form, to a request that does not go on.
func refusal(reply string, reason error) *nats.Msg {
	// of such it never fails
	encoded, _ := json.Marshal(map[string]any{"error": map[string]any{"code": 403, "description": reason.Error()}})
	return &nats.Msg{Subject: reply, Data: encoded}
}
