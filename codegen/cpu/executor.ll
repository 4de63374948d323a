; Made from executor.c by `python -m tilestitch.codegen.cpu.executor`; do not edit.
%struct.Team = type { i64, ptr, i64, i64, i64, ptr, i64, ptr, i64, [56 x i8], i64, [56 x i8], i64, [56 x i8], i32, i32, i32, [52 x i8] }
%struct.timespec = type { i64, i64 }
%struct.Launch = type { ptr, ptr, i64 }

; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(none)
define i64 @ts_team_bytes() local_unnamed_addr #0 {
entry:
  ret i64 320
}

; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write)
define void @ts_init(ptr nocapture noundef writeonly %team, i64 noundef %threads, ptr noundef %scratch, i64 noundef %scratch_bytes, i64 noundef %spins, i64 noundef %futex) local_unnamed_addr #1 {
entry:
  store i64 %threads, ptr %team, align 64
  %scratch2 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  store ptr %scratch, ptr %scratch2, align 8
  %scratch_bytes3 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  store i64 %scratch_bytes, ptr %scratch_bytes3, align 16
  %spins4 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  store i64 %spins, ptr %spins4, align 8
  %futex5 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  store i64 %futex, ptr %futex5, align 32
  ret void
}

; Function Attrs: nounwind
define void @ts_worker(ptr noundef %team, i64 noundef %thread) local_unnamed_addr #2 {
entry:
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %spins.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %call4 = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #5
  %0 = load atomic i32, ptr %stopped seq_cst, align 8
  %tobool.not.not5 = icmp eq i32 %0, 0
  br i1 %tobool.not.not5, label %if.end, label %return

if.end:
  %call6 = phi i64 [ %call, %cleanup ], [ %call4, %entry ]
  %1 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %1, 0
  br i1 %cmp26.i, label %for.body.i, label %for.end.i

for.body.i:
  %i.027.i = phi i64 [ %inc.i, %if.end.i ], [ 0, %if.end ]
  %2 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %2, %call6
  br i1 %cmp1.not.i, label %if.end.i, label %cleanup

if.end.i:
  tail call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #6
  %inc.i = add nuw nsw i64 %i.027.i, 1
  %3 = load i64, ptr %spins.i, align 8
  %cmp.i = icmp slt i64 %inc.i, %3
  br i1 %cmp.i, label %for.body.i, label %for.end.i

for.end.i:
  %4 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %5 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %6 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %6, %call6
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %7 = load i64, ptr %futex.i, align 32
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %7, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %5, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %if.end10.i

if.end10.i:
  %8 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %cleanup

cleanup:
  %call = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #5
  %9 = load atomic i32, ptr %stopped seq_cst, align 8
  %tobool.not.not = icmp eq i32 %9, 0
  br i1 %tobool.not.not, label %if.end, label %return

return:
  ret void
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: nounwind
define internal fastcc i64 @work(ptr noundef %team, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %ticket1 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %0 = load atomic i64, ptr %ticket1 acquire, align 64
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %while.cond.outer

while.cond.outer:
  %done.1.ph = phi i64 [ 0, %entry ], [ %done.1.ph.be, %while.cond.outer.backedge ]
  %ticket.1.ph = phi i64 [ %0, %entry ], [ %ticket.1.ph.be, %while.cond.outer.backedge ]
  br label %while.cond

while.cond:
  %ticket.1 = phi i64 [ %3, %while.body ], [ %ticket.1.ph, %while.cond.outer ]
  %and.i43 = and i64 %ticket.1, 2147483647
  %tobool.not = icmp eq i64 %and.i43, 0
  br i1 %tobool.not, label %while.end, label %while.body

while.body:
  %sub = add i64 %ticket.1, -1
  %1 = cmpxchg weak ptr %ticket1, i64 %ticket.1, i64 %sub acq_rel acquire, align 8
  %2 = extractvalue { i64, i1 } %1, 1
  %3 = extractvalue { i64, i1 } %1, 0
  br i1 %2, label %if.end, label %while.cond

if.end:
  %4 = load ptr, ptr %launches, align 8
  %5 = load i64, ptr %current, align 64
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %4, i64 %5
  %tasks = getelementptr inbounds %struct.Launch, ptr %4, i64 %5, i32 2
  %6 = load i64, ptr %tasks, align 8
  %sub5 = sub nsw i64 %6, %and.i43
  %7 = load ptr, ptr %arrayidx, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %4, i64 %5, i32 1
  %8 = load ptr, ptr %args.i, align 8
  %9 = load ptr, ptr %scratch.i, align 8
  %10 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %10, %thread
  %add.ptr.i = getelementptr inbounds i8, ptr %9, i64 %mul.i
  call void %7(ptr noundef %8, i64 noundef %sub5, ptr noundef %add.ptr.i) #7
  %inc = add nuw nsw i64 %done.1.ph, 1
  %11 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge

while.cond.outer.backedge:
  %done.1.ph.be = phi i64 [ %inc, %if.end ], [ 0, %if.end17 ]
  %ticket.1.ph.be = phi i64 [ %11, %if.end ], [ %18, %if.end17 ]
  br label %while.cond.outer

while.end:
  %tobool8.not = icmp eq i64 %done.1.ph, 0
  br i1 %tobool8.not, label %if.then9, label %if.end10

if.then9:
  ret i64 %ticket.1

if.end10:
  %12 = load i64, ptr %current, align 64
  %13 = atomicrmw sub ptr %unfinished, i64 %done.1.ph acq_rel, align 8
  %cmp = icmp eq i64 %13, %done.1.ph
  br i1 %cmp, label %if.then15, label %if.end17

if.then15:
  %add = add nsw i64 %12, 1
  %14 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %14, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %15 = load i64, ptr %now.i, align 8
  %mul.i42 = mul nsw i64 %15, 1000000000
  %16 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i42, %16
  %17 = load ptr, ptr %times_ns.i, align 8
  %arrayidx.i = getelementptr inbounds i64, ptr %17, i64 %add
  store i64 %add.i, ptr %arrayidx.i, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

record_time.exit:
  call fastcc void @advance(ptr noundef nonnull %team, i64 noundef %add, i64 noundef %thread) #5
  br label %if.end17

if.end17:
  %18 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: nounwind
define void @ts_run(ptr noundef %team, ptr noundef %launches, i64 noundef %count, ptr noundef %times_ns) local_unnamed_addr #2 {
entry:
  %now.i35 = alloca %struct.timespec, align 8
  %now.i = alloca %struct.timespec, align 8
  %launches1 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  store ptr %launches, ptr %launches1, align 8
  %count2 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  store i64 %count, ptr %count2, align 16
  %times_ns3 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  store ptr %times_ns, ptr %times_ns3, align 8
  %tobool.not.i = icmp eq ptr %times_ns, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %0 = load i64, ptr %now.i, align 8
  %mul.i = mul nsw i64 %0, 1000000000
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  %1 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i, %1
  %2 = load ptr, ptr %times_ns3, align 8
  store i64 %add.i, ptr %2, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

record_time.exit:
  %3 = load i64, ptr %team, align 64
  %cmp = icmp eq i64 %3, 1
  br i1 %cmp, label %for.cond.preheader, label %if.end

for.cond.preheader:
  %cmp450 = icmp sgt i64 %count, 0
  br i1 %cmp450, label %for.cond5.preheader.lr.ph, label %return

for.cond5.preheader.lr.ph:
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %nanoseconds.i40 = getelementptr inbounds %struct.timespec, ptr %now.i35, i64 0, i32 1
  br label %for.cond5.preheader

for.cond5.preheader:
  %i.051 = phi i64 [ 0, %for.cond5.preheader.lr.ph ], [ %add, %record_time.exit43 ]
  %tasks = getelementptr inbounds %struct.Launch, ptr %launches, i64 %i.051, i32 2
  %4 = load i64, ptr %tasks, align 8
  %cmp648 = icmp sgt i64 %4, 0
  br i1 %cmp648, label %for.body8.lr.ph, label %for.cond.cleanup7

for.body8.lr.ph:
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %launches, i64 %i.051
  %args.i = getelementptr inbounds %struct.Launch, ptr %launches, i64 %i.051, i32 1
  br label %for.body8

for.cond.cleanup7:
  %add = add nuw nsw i64 %i.051, 1
  %5 = load ptr, ptr %times_ns3, align 8
  %tobool.not.i37 = icmp eq ptr %5, null
  br i1 %tobool.not.i37, label %record_time.exit43, label %if.end.i42

if.end.i42:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i35) #6
  %call.i38 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i35) #7
  %6 = load i64, ptr %now.i35, align 8
  %mul.i39 = mul nsw i64 %6, 1000000000
  %7 = load i64, ptr %nanoseconds.i40, align 8
  %add.i41 = add nsw i64 %mul.i39, %7
  %8 = load ptr, ptr %times_ns3, align 8
  %arrayidx.i = getelementptr inbounds i64, ptr %8, i64 %add
  store i64 %add.i41, ptr %arrayidx.i, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i35) #6
  br label %record_time.exit43

record_time.exit43:
  %exitcond.not = icmp eq i64 %add, %count
  br i1 %exitcond.not, label %return, label %for.cond5.preheader

for.body8:
  %task.049 = phi i64 [ 0, %for.body8.lr.ph ], [ %inc, %for.body8 ]
  %9 = load ptr, ptr %arrayidx, align 8
  %10 = load ptr, ptr %args.i, align 8
  %11 = load ptr, ptr %scratch.i, align 8
  call void %9(ptr noundef %10, i64 noundef %task.049, ptr noundef %11) #7
  %inc = add nuw nsw i64 %task.049, 1
  %12 = load i64, ptr %tasks, align 8
  %cmp6 = icmp slt i64 %inc, %12
  br i1 %cmp6, label %for.body8, label %for.cond.cleanup7

if.end:
  call fastcc void @advance(ptr noundef nonnull %team, i64 noundef 0, i64 noundef 0) #5
  %spins.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %call55 = call fastcc i64 @work(ptr noundef nonnull %team, i64 noundef 0) #5
  %and56 = and i64 %call55, 2147483648
  %tobool.not.not57 = icmp eq i64 %and56, 0
  br i1 %tobool.not.not57, label %if.end15, label %return

if.end15:
  %call58 = phi i64 [ %call, %cleanup ], [ %call55, %if.end ]
  %13 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %13, 0
  br i1 %cmp26.i, label %for.body.i, label %for.end.i

for.body.i:
  %i.027.i = phi i64 [ %inc.i, %if.end.i44 ], [ 0, %if.end15 ]
  %14 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %14, %call58
  br i1 %cmp1.not.i, label %if.end.i44, label %cleanup

if.end.i44:
  call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #6
  %inc.i = add nuw nsw i64 %i.027.i, 1
  %15 = load i64, ptr %spins.i, align 8
  %cmp.i = icmp slt i64 %inc.i, %15
  br i1 %cmp.i, label %for.body.i, label %for.end.i

for.end.i:
  %16 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %17 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %18 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %18, %call58
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %19 = load i64, ptr %futex.i, align 32
  %call.i45 = call i64 (i64, ...) @syscall(i64 noundef %19, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %17, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %if.end10.i

if.end10.i:
  %20 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %cleanup

cleanup:
  %call = call fastcc i64 @work(ptr noundef nonnull %team, i64 noundef 0) #5
  %and = and i64 %call, 2147483648
  %tobool.not.not = icmp eq i64 %and, 0
  br i1 %tobool.not.not, label %if.end15, label %return

return:
  ret void
}

; Function Attrs: nounwind
define internal fastcc void @advance(ptr noundef %team, i64 noundef %next, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %count = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  %0 = load i64, ptr %count, align 16
  %cmp60 = icmp sgt i64 %0, %next
  br i1 %cmp60, label %land.rhs.lr.ph, label %for.end

land.rhs.lr.ph:
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  %1 = load ptr, ptr %launches, align 8
  %tasks66 = getelementptr inbounds %struct.Launch, ptr %1, i64 %next, i32 2
  %2 = load i64, ptr %tasks66, align 8
  %cmp167 = icmp slt i64 %2, 2
  br i1 %cmp167, label %for.body.lr.ph, label %for.end

for.body.lr.ph:
  %arrayidx65 = getelementptr inbounds %struct.Launch, ptr %1, i64 %next
  br label %for.body

land.rhs:
  %3 = load ptr, ptr %launches, align 8
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %3, i64 %add
  %tasks = getelementptr inbounds %struct.Launch, ptr %3, i64 %add, i32 2
  %4 = load i64, ptr %tasks, align 8
  %cmp1 = icmp slt i64 %4, 2
  br i1 %cmp1, label %for.body, label %for.end

for.body:
  %5 = phi i64 [ %2, %for.body.lr.ph ], [ %4, %land.rhs ]
  %arrayidx69 = phi ptr [ %arrayidx65, %for.body.lr.ph ], [ %arrayidx, %land.rhs ]
  %6 = phi ptr [ %1, %for.body.lr.ph ], [ %3, %land.rhs ]
  %next.addr.06168 = phi i64 [ %next, %for.body.lr.ph ], [ %add, %land.rhs ]
  %tobool.not = icmp eq i64 %5, 0
  br i1 %tobool.not, label %if.end, label %if.then

if.then:
  %7 = load ptr, ptr %arrayidx69, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %6, i64 %next.addr.06168, i32 1
  %8 = load ptr, ptr %args.i, align 8
  %9 = load ptr, ptr %scratch.i, align 8
  %10 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %10, %thread
  %add.ptr.i = getelementptr inbounds i8, ptr %9, i64 %mul.i
  call void %7(ptr noundef %8, i64 noundef 0, ptr noundef %add.ptr.i) #7
  br label %if.end

if.end:
  %add = add nsw i64 %next.addr.06168, 1
  %11 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %11, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #6
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #7
  %12 = load i64, ptr %now.i, align 8
  %mul.i44 = mul nsw i64 %12, 1000000000
  %13 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i44, %13
  %14 = load ptr, ptr %times_ns.i, align 8
  %arrayidx.i = getelementptr inbounds i64, ptr %14, i64 %add
  store i64 %add.i, ptr %arrayidx.i, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #6
  br label %record_time.exit

record_time.exit:
  %15 = load i64, ptr %count, align 16
  %cmp = icmp slt i64 %add, %15
  br i1 %cmp, label %land.rhs, label %for.end

for.end:
  %next.addr.0.lcssa = phi i64 [ %next, %entry ], [ %next, %land.rhs.lr.ph ], [ %add, %land.rhs ], [ %add, %record_time.exit ]
  %.lcssa = phi i64 [ %0, %entry ], [ %0, %land.rhs.lr.ph ], [ %15, %land.rhs ], [ %15, %record_time.exit ]
  %cmp8 = icmp eq i64 %next.addr.0.lcssa, %.lcssa
  br i1 %cmp8, label %if.then9, label %if.end13

if.then9:
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %16 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %16, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %tobool10.not = icmp eq i64 %thread, 0
  br i1 %tobool10.not, label %return, label %if.then11

if.then11:
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %17 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %18 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i45 = icmp eq i32 %18, 0
  br i1 %tobool.not.i45, label %return, label %return.sink.split

if.end13:
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  store i64 %next.addr.0.lcssa, ptr %current, align 64
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %19 = load ptr, ptr %launches, align 8
  %tasks16 = getelementptr inbounds %struct.Launch, ptr %19, i64 %next.addr.0.lcssa, i32 2
  %20 = load i64, ptr %tasks16, align 8
  store atomic i64 %20, ptr %unfinished monotonic, align 64
  %21 = load i64, ptr %tasks16, align 8
  %ticket.i48 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %22 = load atomic i64, ptr %ticket.i48 monotonic, align 64
  %shr.i49 = and i64 %22, -4294967296
  %shl.i50 = add i64 %shr.i49, 4294967296
  %conv.i = and i64 %21, 4294967295
  %or.i51 = or i64 %shl.i50, %conv.i
  store atomic i64 %or.i51, ptr %ticket.i48 seq_cst, align 64
  %wakeups.i52 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %23 = atomicrmw add ptr %wakeups.i52, i32 1 seq_cst, align 4
  %sleepers.i53 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %24 = load atomic i32, ptr %sleepers.i53 seq_cst, align 4
  %tobool.not.i54 = icmp eq i32 %24, 0
  br i1 %tobool.not.i54, label %return, label %return.sink.split

return.sink.split:
  %wakeups.i52.sink = phi ptr [ %wakeups.i, %if.then11 ], [ %wakeups.i52, %if.end13 ]
  %futex.i55 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %25 = load i64, ptr %futex.i55, align 32
  %call.i56 = call i64 (i64, ...) @syscall(i64 noundef %25, ptr noundef nonnull %wakeups.i52.sink, i32 noundef 129, i32 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %return

return:
  ret void
}

; Function Attrs: nounwind
define void @ts_stop(ptr noundef %team) local_unnamed_addr #2 {
entry:
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  store atomic i32 1, ptr %stopped seq_cst, align 8
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %0 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %0, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %1 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 15
  %2 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i = icmp eq i32 %2, 0
  br i1 %tobool.not.i, label %wake_sleepers.exit, label %if.then.i

if.then.i:
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %3 = load i64, ptr %futex.i, align 32
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %3, ptr noundef nonnull %wakeups.i, i32 noundef 129, i32 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #7
  br label %wake_sleepers.exit

wake_sleepers.exit:
  ret void
}

declare i64 @syscall(i64 noundef, ...) local_unnamed_addr

declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(none) }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write) }
attributes #2 = { nounwind }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #5 = { nobuiltin }
attributes #6 = { nounwind }
attributes #7 = { nobuiltin nounwind }
