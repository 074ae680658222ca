package join

import "time"

// ServerPath is where another server of the stack is given its keys: POST, with a ServerRequest as JSON and, as bearer,
// the secret of a Token that was made for servers. The answer is a ServerAnswer, or an error as all of the API are.
const ServerPath = "/api/v1/servers/join"

// ServerRequest is what a machine says that is to be one more server of a stack.
type ServerRequest struct {
	// Server is its name, of which CheckName says what it may be.
	Server string `json:"server"`
	// Version is that of its program.
	Version string `json:"version"`
	// At is when it asks, by its own clock.
	At time.Time `json:"at"`
}

// ServerAnswer is what a server needs to be one of the stack. Who has it has everything: it is sent over a connection
// on which the asker has verified the other by its Token, once, and kept in files that only the owner reads.
type ServerAnswer struct {
	// Secret is the root of the credentials of the stack: see access.TakeKeys.
	Secret string `json:"secret"`
	// Authority is the certificate and the key of the stack's authority, as PEM; empty where the servers show certificates
	// of somebody else's.
	Authority string `json:"authority,omitempty"`
	// Version is that of the server that answers.
	Version string `json:"version"`
	// At is when it answers, by its clock.
	At time.Time `json:"at"`
}
