import { onAbort } from "./on-abort.js";
import type { ManagerEvent, Reply } from "./protocol.js";

/** Request and reply over the manager's mailbox. A call is settled once: by its reply, or by the end of the manager. */
export class Calls {
  readonly #send: (event: ManagerEvent) => void;
  readonly #pending = new Map<(error: unknown) => void, string>();

  constructor(send: (event: ManagerEvent) => void) {
    this.#send = send;
  }

  /**
   * `subject` is the model id (or what else the call is about), for the error if the manager ends meanwhile. `discard` gets
   * a value that comes when the caller has gone.
   */
  call<T>(subject: string, build: (reply: Reply<T>) => ManagerEvent, discard?: (value: T) => void): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const fail = (error: unknown) => {
        this.#pending.delete(fail);
        reject(error);
      };
      const ok = (value: T) => {
        if (this.#pending.delete(fail)) resolve(value);
        else discard?.(value);
      };
      this.#pending.set(fail, subject);
      this.#send(build({ ok, fail }));
    });
  }

  /** For a caller who can leave: the promise rejects with the signal's reason at once, and the manager is told. */
  callWithSignal<T>(
    subject: string,
    signal: AbortSignal | undefined,
    build: (reply: Reply<T>, ticket: symbol) => ManagerEvent,
    discard?: (value: T) => void,
  ): Promise<T> {
    const ticket = Symbol(subject);
    if (signal === undefined) return this.call(subject, (reply) => build(reply, ticket));
    if (signal.aborted) return Promise.reject(signal.reason);
    let leave: () => void = () => undefined;
    const called = this.call<T>(
      subject,
      (reply) => {
        leave = () => {
          reply.fail(signal.reason);
          this.#send({ type: "wait.withdraw", ticket });
        };
        return build(reply, ticket);
      },
      discard,
    );
    const stay = onAbort(signal, leave);
    called.then(stay, stay);
    return called;
  }

  failAll(errorFor: (subject: string) => unknown): void {
    for (const [fail, subject] of [...this.#pending]) fail(errorFor(subject));
  }
}
