// Package venue says what functions offer and cost, and where a training whose workers exchange its model costs less:
// on hosts or in functions.
package venue
