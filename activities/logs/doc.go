// Package logs keeps what attempts print, so that it can be followed live and read after, per run, stage, task and
// attempt.
//
// A venue gives each attempt the Lines of a Writer as its standard output and error; whoever wants to read calls
// Follow. Nothing is redacted: what a program prints is stored as it is until it is a week old, so a program must not
// print secrets.
package logs
