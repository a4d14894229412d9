"""Transactions of several clients: serializable (D-TX), atomic (D-TX_NI) and planned (S-TX).

Guarantees. All operations of all clients in a transaction happen, or none does. Publications are
delivered with the commit.

* *serializable*: other clients see nothing of the transaction before the commit, and then all of
  it; committed transactions are equivalent to a sequence of them (`two_phase_commit`, `contexts`,
  `locks`);
* *atomic*: other clients see its changes of subscriptions at once; an abort undoes them
  (`two_phase_commit`, `compensation`);
* *planned*: as atomic, but all operations are known beforehand, so that no operation waits for the
  answer to another (`submissions`, `plans`).

Theory of operation. Operations within a transaction are steps of content brokers (`operations`). A
client invites others to act within its transaction, by name or by content (`invitations`). The home
of the client that coordinates holds the decision, with a deadline: no broker waits for a client.
Each broker is one `TransactionBroker` that owns its parts and gives each frame to one of them; all
its state survives a crash (`content.input_log`). A client is one `TransactionClient`.

Assumptions. Those of `content`. Transactions need all brokers: while one is away they wait, and
time out.

HAZARD: a broker that has voted yes and is cut off from the coordinator's home can't decide;
serializable transactions that conflict wait for it and time out. HAZARD: a plan is weakly isolated
(`plans`).

Departures from the paper: errata D1 to D11 and S1 to S7; an invitation (`tcm`) names a client, or
matches subscriptions to invitations and not all subscriptions; publications wait for the commit at
the broker of their recipient, which is durable, and not at the recipient; deadlines are at the
coordinator's home.
"""
