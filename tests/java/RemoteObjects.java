// RMI: a registry, a remote object, large arguments and results, exceptions, and calls back to the caller.
//
//   java RemoteObjects server      prints "listening PORT" of its registry
//   java RemoteObjects client PORT

import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.rmi.NoSuchObjectException;
import java.rmi.NotBoundException;
import java.rmi.Remote;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.rmi.registry.Registry;
import java.rmi.server.RMIServerSocketFactory;
import java.rmi.server.UnicastRemoteObject;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

final class RemoteObjects {
    static final int THREADS = 8;
    static final int CALLS = 500;

    interface Listener extends Remote {
        String heard(int number, byte[] data) throws RemoteException;
    }

    interface Service extends Remote {
        byte[] reverse(byte[] data) throws RemoteException;

        List<String> names(List<Integer> numbers) throws RemoteException;

        int add(int a, int b) throws RemoteException;

        /** Calls the listener, which may call the service again. */
        List<String> tell(Listener listener, int times) throws RemoteException;

        void fail(String message) throws RemoteException;

        void leave() throws RemoteException;
    }

    static byte[] reversed(byte[] data) {
        byte[] result = new byte[data.length];
        for (int i = 0; i < data.length; i++) {
            result[i] = data[data.length - 1 - i];
        }
        return result;
    }

    static final class Server implements Service {
        @Override
        public byte[] reverse(byte[] data) {
            return reversed(data);
        }

        @Override
        public List<String> names(List<Integer> numbers) {
            return numbers.stream().map(n -> "name " + n).collect(Collectors.toList());
        }

        @Override
        public int add(int a, int b) {
            return a + b;
        }

        @Override
        public List<String> tell(Listener listener, int times) throws RemoteException {
            List<String> answers = new ArrayList<>();
            for (int i = 0; i < times; i++) {
                answers.add(listener.heard(i, Noise.bytes(i, 1000 * i)));
            }
            return answers;
        }

        @Override
        public void fail(String message) {
            throw new IllegalStateException(message);
        }

        @Override
        public void leave() throws NoSuchObjectException {
            UnicastRemoteObject.unexportObject(this, true);
        }
    }

    static void server() throws Exception {
        RMIServerSocketFactory sayPort = port -> {
            ServerSocket socket = new ServerSocket();
            socket.bind(new InetSocketAddress(port), 50);
            Noise.listening(socket.getLocalPort());
            return socket;
        };
        Server server = new Server();
        Remote stub = UnicastRemoteObject.exportObject(server, 0);
        // The object is there before the port is said.
        Registry[] registry = new Registry[1];
        synchronized (registry) {
            registry[0] = LocateRegistry.createRegistry(0, null, sayPort);
            registry[0].rebind("service", stub);
            registry.wait();
        }
    }

    static void client(int port) throws Exception {
        Registry registry = LocateRegistry.getRegistry("127.0.0.1", port);
        Service service = null;
        for (int i = 0; service == null && i < 1000; i++) {  // the name comes after the port
            try {
                service = (Service) registry.lookup("service");
            } catch (NotBoundException error) {
                Thread.sleep(10);
            }
        }
        Service remote = service;
        Noise.say(String.join(",", registry.list()), remote.add(3, 4));
        for (int size : new int[] {0, 1, 10_000, 1 << 20, 20 << 20}) {
            byte[] data = Noise.bytes(size, size);
            Noise.say("reversed", Noise.sum(remote.reverse(data)), Noise.sum(reversed(data)));
        }
        Noise.say(remote.names(IntStream.range(0, 50_000).boxed().collect(Collectors.toList())).hashCode());
        Listener listener = new Listener() {
            @Override
            public String heard(int number, byte[] data) throws RemoteException {
                return number + "=" + Noise.sum(remote.reverse(data));
            }
        };
        UnicastRemoteObject.exportObject(listener, 0);
        Noise.say(remote.tell(listener, 40));
        Noise.say(Noise.outcome(() -> {
            remote.fail("as it should");
            return "nothing";
        }));
        List<Thread> threads = new ArrayList<>();
        int[] sums = new int[THREADS];
        long start = System.nanoTime();
        for (int i = 0; i < THREADS; i++) {
            int number = i;
            threads.add(Noise.spawn("caller", () -> {
                for (int k = 0; k < CALLS; k++) {
                    sums[number] = remote.add(sums[number], k);
                }
                return null;
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("rate " + THREADS * CALLS * 1_000_000_000L / (System.nanoTime() - start));
        Noise.say(IntStream.of(sums).sum());
        remote.leave();
        Noise.say(Noise.outcome(() -> remote.add(1, 2)));
        UnicastRemoteObject.unexportObject(listener, true);
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        if (args[0].equals("server")) {
            server();
        } else {
            client(Integer.parseInt(args[1]));
        }
    }
}
