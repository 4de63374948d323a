; Made from executor.c by `python -m tilestitch.codegen.cpu.executor`; do not edit.
%struct.Team = type { i64, ptr, i64, i64, i64, ptr, i64, ptr, ptr, i64, i64, [40 x i8], i64, [56 x i8], i64, [56 x i8], i32, i32, i32, [52 x i8] }
%struct.timespec = type { i64, i64 }
%struct.Launch = type { ptr, ptr, i64, i64 }
%struct.Run = type { ptr, ptr, i64, ptr, ptr }
%struct.Loop = type { i64, i64, ptr, ptr, i64 }
%struct.Change = type { ptr, i64, i64, i64 }
%struct.Arg = type { i64, ptr }
%struct.Resize = type { ptr, i64, ptr, i64, ptr, i64, ptr, i64, ptr, i64, i64, ptr, ptr, i64 }
%struct.Symbol = type { ptr, i64, i64 }
%struct.Operation = type { i64, i64, i64 }
%struct.Rule = type { i64, [6 x i64] }
%struct.Patch = type { ptr, i64, i64, i64 }

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
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 18
  %spins.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %call4 = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #8
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
  tail call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #9
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
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %7, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %5, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %if.end10.i

if.end10.i:
  %8 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %cleanup

cleanup:
  %call = tail call fastcc i64 @work(ptr noundef %team, i64 noundef %thread) #8
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
  %ticket1 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %0 = load atomic i64, ptr %ticket1 acquire, align 64
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 9
  %tasks = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %while.cond.outer

while.cond.outer:
  %done.1.ph = phi i64 [ 0, %entry ], [ %done.1.ph.be, %while.cond.outer.backedge ]
  %ticket.1.ph = phi i64 [ %0, %entry ], [ %ticket.1.ph.be, %while.cond.outer.backedge ]
  br label %while.cond

while.cond:
  %ticket.1 = phi i64 [ %3, %while.body ], [ %ticket.1.ph, %while.cond.outer ]
  %and.i51 = and i64 %ticket.1, 2147483647
  %tobool.not = icmp eq i64 %and.i51, 0
  br i1 %tobool.not, label %while.end, label %while.body

while.body:
  %sub = add i64 %ticket.1, -1
  %1 = cmpxchg weak ptr %ticket1, i64 %ticket.1, i64 %sub acq_rel acquire, align 8
  %2 = extractvalue { i64, i1 } %1, 1
  %3 = extractvalue { i64, i1 } %1, 0
  br i1 %2, label %if.end, label %while.cond

if.end:
  %4 = load ptr, ptr %launches, align 8
  %5 = load i64, ptr %current, align 8
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %4, i64 %5
  %6 = load i64, ptr %tasks, align 16
  %sub5 = sub nsw i64 %6, %and.i51
  %tasks14.i = getelementptr inbounds %struct.Launch, ptr %4, i64 %5, i32 2
  %7 = load i64, ptr %tasks14.i, align 8
  %cmp.not15.i = icmp sgt i64 %7, %sub5
  br i1 %cmp.not15.i, label %run_task.exit, label %for.body.i

for.body.i:
  %8 = phi i64 [ %9, %for.body.i ], [ %7, %if.end ]
  %launch.addr.017.i = phi ptr [ %incdec.ptr.i, %for.body.i ], [ %arrayidx, %if.end ]
  %drawn.addr.016.i = phi i64 [ %sub.i, %for.body.i ], [ %sub5, %if.end ]
  %sub.i = sub nsw i64 %drawn.addr.016.i, %8
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.017.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.017.i, i64 1, i32 2
  %9 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %9
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i

run_task.exit:
  %drawn.addr.0.lcssa.i = phi i64 [ %sub5, %if.end ], [ %sub.i, %for.body.i ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %if.end ], [ %incdec.ptr.i, %for.body.i ]
  %.lcssa.i = phi i64 [ %7, %if.end ], [ %9, %for.body.i ]
  %conv.i48 = trunc i64 %drawn.addr.0.lcssa.i to i32
  %conv3.i = trunc i64 %.lcssa.i to i32
  %10 = load i64, ptr %team, align 64
  %conv4.i = trunc i64 %10 to i32
  %rem.i.i = urem i32 %conv.i48, %conv4.i
  %rem1.i.i = urem i32 %conv3.i, %conv4.i
  %conv.i.i = zext i32 %rem.i.i to i64
  %div.i.i = udiv i32 %conv3.i, %conv4.i
  %conv2.i.i = zext i32 %div.i.i to i64
  %mul.i.i = mul nuw nsw i64 %conv2.i.i, %conv.i.i
  %cond.i.i = call i32 @llvm.umin.i32(i32 %rem.i.i, i32 %rem1.i.i)
  %conv4.i.i = zext i32 %cond.i.i to i64
  %add.i.i = add nuw nsw i64 %mul.i.i, %conv4.i.i
  %div5.i.i = udiv i32 %conv.i48, %conv4.i
  %conv6.i.i = zext i32 %div5.i.i to i64
  %add7.i.i = add nuw nsw i64 %add.i.i, %conv6.i.i
  %11 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %12 = load ptr, ptr %args.i, align 8
  %13 = load ptr, ptr %scratch.i, align 8
  %14 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %14, %thread
  %add.ptr.i = getelementptr inbounds i8, ptr %13, i64 %mul.i
  call void %11(ptr noundef %12, i64 noundef %add7.i.i, ptr noundef %add.ptr.i) #10
  %inc = add nuw nsw i64 %done.1.ph, 1
  %15 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge

while.cond.outer.backedge:
  %done.1.ph.be = phi i64 [ %inc, %run_task.exit ], [ 0, %if.end20 ]
  %ticket.1.ph.be = phi i64 [ %15, %run_task.exit ], [ %31, %if.end20 ]
  br label %while.cond.outer

while.end:
  %tobool8.not = icmp eq i64 %done.1.ph, 0
  br i1 %tobool8.not, label %if.then9, label %if.end10

if.then9:
  ret i64 %ticket.1

if.end10:
  %16 = load i64, ptr %current, align 8
  %17 = load ptr, ptr %launches, align 8
  %together14 = getelementptr inbounds %struct.Launch, ptr %17, i64 %16, i32 3
  %18 = load i64, ptr %together14, align 8
  %19 = atomicrmw sub ptr %unfinished, i64 %done.1.ph acq_rel, align 8
  %cmp = icmp eq i64 %19, %done.1.ph
  br i1 %cmp, label %if.then18, label %if.end20

if.then18:
  %20 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i = icmp eq ptr %20, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #9
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #10
  %cmp6.i = icmp sgt i64 %18, 0
  br i1 %cmp6.i, label %for.body.i50.preheader, label %for.cond.cleanup.i

for.body.i50.preheader:
  %xtraiter = and i64 %18, 1
  %21 = icmp eq i64 %18, 1
  br i1 %21, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i50.preheader.new

for.body.i50.preheader.new:
  %unroll_iter = and i64 %18, -2
  br label %for.body.i50

for.cond.cleanup.i.loopexit.unr-lcssa:
  %i.07.i.unr = phi i64 [ 0, %for.body.i50.preheader ], [ %add.1, %for.body.i50 ]
  %lcmp.mod.not = icmp eq i64 %xtraiter, 0
  br i1 %lcmp.mod.not, label %for.cond.cleanup.i, label %for.body.i50.epil

for.body.i50.epil:
  %22 = load i64, ptr %now.i, align 8
  %mul.i49.epil = mul nsw i64 %22, 1000000000
  %23 = load i64, ptr %nanoseconds.i, align 8
  %add.i.epil = add nsw i64 %mul.i49.epil, %23
  %24 = load ptr, ptr %times_ns.i, align 8
  %add.epil = add nuw nsw i64 %i.07.i.unr, 1
  %add2.i.epil = add i64 %add.epil, %16
  %arrayidx.i.epil = getelementptr inbounds i64, ptr %24, i64 %add2.i.epil
  store i64 %add.i.epil, ptr %arrayidx.i.epil, align 8
  br label %for.cond.cleanup.i

for.cond.cleanup.i:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #9
  br label %record_time.exit

for.body.i50:
  %i.07.i = phi i64 [ 0, %for.body.i50.preheader.new ], [ %add.1, %for.body.i50 ]
  %niter = phi i64 [ 0, %for.body.i50.preheader.new ], [ %niter.next.1, %for.body.i50 ]
  %25 = load i64, ptr %now.i, align 8
  %mul.i49 = mul nsw i64 %25, 1000000000
  %26 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i49, %26
  %27 = load ptr, ptr %times_ns.i, align 8
  %add = or i64 %i.07.i, 1
  %add2.i = add i64 %add, %16
  %arrayidx.i = getelementptr inbounds i64, ptr %27, i64 %add2.i
  store i64 %add.i, ptr %arrayidx.i, align 8
  %28 = load i64, ptr %now.i, align 8
  %mul.i49.1 = mul nsw i64 %28, 1000000000
  %29 = load i64, ptr %nanoseconds.i, align 8
  %add.i.1 = add nsw i64 %mul.i49.1, %29
  %30 = load ptr, ptr %times_ns.i, align 8
  %add.1 = add nuw nsw i64 %i.07.i, 2
  %add2.i.1 = add i64 %add.1, %16
  %arrayidx.i.1 = getelementptr inbounds i64, ptr %30, i64 %add2.i.1
  store i64 %add.i.1, ptr %arrayidx.i.1, align 8
  %niter.next.1 = add nuw i64 %niter, 2
  %niter.ncmp.1 = icmp eq i64 %niter.next.1, %unroll_iter
  br i1 %niter.ncmp.1, label %for.cond.cleanup.i.loopexit.unr-lcssa, label %for.body.i50

record_time.exit:
  %add19 = add nsw i64 %18, %16
  call fastcc void @advance(ptr noundef nonnull %team, i64 noundef %add19, i64 noundef %thread) #8
  br label %if.end20

if.end20:
  %31 = load atomic i64, ptr %ticket1 acquire, align 64
  br label %while.cond.outer.backedge
}

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: nounwind
define void @ts_run(ptr nocapture noundef readonly %run) local_unnamed_addr #2 {
entry:
  %now.i59 = alloca %struct.timespec, align 8
  %now.i = alloca %struct.timespec, align 8
  %0 = load ptr, ptr %run, align 8
  %launches2 = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 1
  %1 = load ptr, ptr %launches2, align 8
  %launches3 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 5
  store ptr %1, ptr %launches3, align 8
  %count4 = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 2
  %2 = load i64, ptr %count4, align 8
  %count5 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 6
  store i64 %2, ptr %count5, align 16
  %times_ns = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 3
  %3 = load ptr, ptr %times_ns, align 8
  %times_ns6 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 7
  store ptr %3, ptr %times_ns6, align 8
  %loop = getelementptr inbounds %struct.Run, ptr %run, i64 0, i32 4
  %4 = load ptr, ptr %loop, align 8
  %loop7 = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 8
  store ptr %4, ptr %loop7, align 64
  %tobool.not.i = icmp eq ptr %3, null
  br i1 %tobool.not.i, label %record_time.exit, label %if.end.i

if.end.i:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #9
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #10
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  %5 = load i64, ptr %now.i, align 8
  %mul.i = mul nsw i64 %5, 1000000000
  %6 = load i64, ptr %nanoseconds.i, align 8
  %add.i = add nsw i64 %mul.i, %6
  %7 = load ptr, ptr %times_ns6, align 8
  store i64 %add.i, ptr %7, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #9
  br label %record_time.exit

record_time.exit:
  %8 = load i64, ptr %0, align 64
  %cmp = icmp eq i64 %8, 1
  br i1 %cmp, label %do.body.preheader, label %if.end

do.body.preheader:
  %cmp890 = icmp sgt i64 %2, 0
  %scratch = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 1
  %nanoseconds.i64 = getelementptr inbounds %struct.timespec, ptr %now.i59, i64 0, i32 1
  br label %do.body

do.body:
  br i1 %cmp890, label %for.cond9.preheader, label %for.cond.cleanup

for.cond9.preheader:
  %i.091 = phi i64 [ %add, %record_time.exit74 ], [ 0, %do.body ]
  %tasks = getelementptr inbounds %struct.Launch, ptr %1, i64 %i.091, i32 2
  %9 = load i64, ptr %tasks, align 8
  %cmp1088 = icmp sgt i64 %9, 0
  br i1 %cmp1088, label %for.body12.lr.ph, label %for.cond.cleanup11

for.body12.lr.ph:
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %1, i64 %i.091
  %args = getelementptr inbounds %struct.Launch, ptr %1, i64 %i.091, i32 1
  br label %for.body12

for.cond.cleanup:
  %10 = load ptr, ptr %loop7, align 64
  %tobool.not.i51 = icmp eq ptr %10, null
  br i1 %tobool.not.i51, label %cleanup23, label %lor.lhs.false.i

lor.lhs.false.i:
  %done.i = getelementptr inbounds %struct.Loop, ptr %10, i64 0, i32 4
  %11 = load i64, ptr %done.i, align 8
  %inc.i52 = add nsw i64 %11, 1
  store i64 %inc.i52, ptr %done.i, align 8
  %12 = load i64, ptr %10, align 8
  %cmp.i = icmp eq i64 %inc.i52, %12
  br i1 %cmp.i, label %cleanup23, label %lor.lhs.false2.i

lor.lhs.false2.i:
  %going.i = getelementptr inbounds %struct.Loop, ptr %10, i64 0, i32 3
  %13 = load ptr, ptr %going.i, align 8
  %tobool3.not.i = icmp eq ptr %13, null
  br i1 %tobool3.not.i, label %if.end.i53, label %land.lhs.true.i

land.lhs.true.i:
  %14 = load i8, ptr %13, align 1
  %tobool5.not.i = icmp eq i8 %14, 0
  br i1 %tobool5.not.i, label %cleanup23, label %if.end.i53

if.end.i53:
  %count.i = getelementptr inbounds %struct.Loop, ptr %10, i64 0, i32 1
  %15 = load i64, ptr %count.i, align 8
  %cmp633.i = icmp sgt i64 %15, 0
  br i1 %cmp633.i, label %for.body.lr.ph.i, label %for.cond.cleanup.i55

for.body.lr.ph.i:
  %changes.i = getelementptr inbounds %struct.Loop, ptr %10, i64 0, i32 2
  br label %for.body.i58

for.cond.cleanup.i55:
  %16 = load ptr, ptr %times_ns6, align 8
  %tobool10.not.i = icmp eq ptr %16, null
  br i1 %tobool10.not.i, label %do.body.backedge, label %if.then11.i

do.body.backedge:
  br label %do.body

for.body.i58:
  %i.034.i = phi i64 [ 0, %for.body.lr.ph.i ], [ %inc9.i, %for.body.i58 ]
  %17 = load ptr, ptr %changes.i, align 8
  %arrayidx.i56 = getelementptr inbounds %struct.Change, ptr %17, i64 %i.034.i
  %next.i = getelementptr inbounds %struct.Change, ptr %17, i64 %i.034.i, i32 1
  %18 = load i64, ptr %next.i, align 8
  %19 = load ptr, ptr %arrayidx.i56, align 8
  store i64 %18, ptr %19, align 8
  %20 = load i64, ptr %next.i, align 8
  %stride.i = getelementptr inbounds %struct.Change, ptr %17, i64 %i.034.i, i32 2
  %21 = load i64, ptr %stride.i, align 8
  %add.i57 = add nsw i64 %21, %20
  %toggle.i = getelementptr inbounds %struct.Change, ptr %17, i64 %i.034.i, i32 3
  %22 = load i64, ptr %toggle.i, align 8
  %xor.i = xor i64 %add.i57, %22
  store i64 %xor.i, ptr %next.i, align 8
  %inc9.i = add nuw nsw i64 %i.034.i, 1
  %23 = load i64, ptr %count.i, align 8
  %cmp6.i = icmp slt i64 %inc9.i, %23
  br i1 %cmp6.i, label %for.body.i58, label %for.cond.cleanup.i55

if.then11.i:
  %24 = load i64, ptr %count5, align 16
  %add.ptr.i = getelementptr inbounds i64, ptr %16, i64 %24
  store ptr %add.ptr.i, ptr %times_ns6, align 8
  br label %do.body.backedge

for.cond.cleanup11:
  %add = add nuw nsw i64 %i.091, 1
  %25 = load ptr, ptr %times_ns6, align 8
  %tobool.not.i61 = icmp eq ptr %25, null
  br i1 %tobool.not.i61, label %record_time.exit74, label %if.end.i63

if.end.i63:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i59) #9
  %call.i62 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i59) #10
  %26 = load i64, ptr %now.i59, align 8
  %mul.i68 = mul nsw i64 %26, 1000000000
  %27 = load i64, ptr %nanoseconds.i64, align 8
  %add.i69 = add nsw i64 %mul.i68, %27
  %28 = load ptr, ptr %times_ns6, align 8
  %arrayidx.i70 = getelementptr inbounds i64, ptr %28, i64 %add
  store i64 %add.i69, ptr %arrayidx.i70, align 8
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i59) #9
  br label %record_time.exit74

record_time.exit74:
  %exitcond.not = icmp eq i64 %add, %2
  br i1 %exitcond.not, label %for.cond.cleanup, label %for.cond9.preheader

for.body12:
  %task.089 = phi i64 [ 0, %for.body12.lr.ph ], [ %inc, %for.body12 ]
  %29 = load ptr, ptr %arrayidx, align 8
  %30 = load ptr, ptr %args, align 8
  %31 = load ptr, ptr %scratch, align 8
  call void %29(ptr noundef %30, i64 noundef %task.089, ptr noundef %31) #10
  %inc = add nuw nsw i64 %task.089, 1
  %32 = load i64, ptr %tasks, align 8
  %cmp10 = icmp slt i64 %inc, %32
  br i1 %cmp10, label %for.body12, label %for.cond.cleanup11

if.end:
  call fastcc void @advance(ptr noundef nonnull %0, i64 noundef 0, i64 noundef 0) #8
  %call1984 = call fastcc i64 @work(ptr noundef nonnull %0, i64 noundef 0) #8
  %and85 = and i64 %call1984, 2147483648
  %tobool20.not86 = icmp eq i64 %and85, 0
  br i1 %tobool20.not86, label %if.end22.lr.ph, label %cleanup23

if.end22.lr.ph:
  %spins.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 3
  %ticket.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 12
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 17
  %wakeups3.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 16
  %futex.i = getelementptr inbounds %struct.Team, ptr %0, i64 0, i32 4
  br label %if.end22

if.end22:
  %call1987 = phi i64 [ %call1984, %if.end22.lr.ph ], [ %call19, %wait_for_news.exit ]
  %33 = load i64, ptr %spins.i, align 8
  %cmp26.i = icmp sgt i64 %33, 0
  br i1 %cmp26.i, label %for.body.i76, label %for.end.i

for.body.i76:
  %i.027.i = phi i64 [ %inc.i77, %if.end.i79 ], [ 0, %if.end22 ]
  %34 = load atomic i64, ptr %ticket.i monotonic, align 64
  %cmp1.not.i = icmp eq i64 %34, %call1987
  br i1 %cmp1.not.i, label %if.end.i79, label %wait_for_news.exit

if.end.i79:
  call void asm sideeffect "pause", "~{dirflag},~{fpsr},~{flags}"() #9
  %inc.i77 = add nuw nsw i64 %i.027.i, 1
  %35 = load i64, ptr %spins.i, align 8
  %cmp.i78 = icmp slt i64 %inc.i77, %35
  br i1 %cmp.i78, label %for.body.i76, label %for.end.i

for.end.i:
  %36 = atomicrmw add ptr %sleepers.i, i32 1 seq_cst, align 4
  %37 = load atomic i32, ptr %wakeups3.i seq_cst, align 64
  %38 = load atomic i64, ptr %ticket.i seq_cst, align 64
  %cmp7.i = icmp eq i64 %38, %call1987
  br i1 %cmp7.i, label %if.then8.i, label %if.end10.i

if.then8.i:
  %39 = load i64, ptr %futex.i, align 32
  %call.i80 = call i64 (i64, ...) @syscall(i64 noundef %39, ptr noundef nonnull %wakeups3.i, i32 noundef 128, i32 noundef %37, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %if.end10.i

if.end10.i:
  %40 = atomicrmw sub ptr %sleepers.i, i32 1 seq_cst, align 4
  br label %wait_for_news.exit

wait_for_news.exit:
  %call19 = call fastcc i64 @work(ptr noundef nonnull %0, i64 noundef 0) #8
  %and = and i64 %call19, 2147483648
  %tobool20.not = icmp eq i64 %and, 0
  br i1 %tobool20.not, label %if.end22, label %cleanup23

cleanup23:
  ret void
}

; Function Attrs: nounwind
define internal fastcc void @advance(ptr noundef %team, i64 noundef %next, i64 noundef %thread) unnamed_addr #2 {
entry:
  %now.i = alloca %struct.timespec, align 8
  %loop1.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 8
  %count = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 6
  %times_ns.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 7
  %launches = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 5
  %scratch.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 1
  %scratch_bytes.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 2
  %nanoseconds.i = getelementptr inbounds %struct.timespec, ptr %now.i, i64 0, i32 1
  br label %for.cond

for.cond:
  %tasks.0 = phi i64 [ 0, %entry ], [ %tasks.0.lcssa.i8892, %cleanup ]
  %next.addr.0 = phi i64 [ %next, %entry ], [ %add11, %cleanup ]
  %0 = load i64, ptr %count, align 16
  %cmp = icmp eq i64 %next.addr.0, %0
  br i1 %cmp, label %if.then, label %if.end2

if.then:
  %1 = load ptr, ptr %loop1.i, align 64
  %tobool.not.i = icmp eq ptr %1, null
  br i1 %tobool.not.i, label %for.end, label %lor.lhs.false.i

lor.lhs.false.i:
  %done.i = getelementptr inbounds %struct.Loop, ptr %1, i64 0, i32 4
  %2 = load i64, ptr %done.i, align 8
  %inc.i = add nsw i64 %2, 1
  store i64 %inc.i, ptr %done.i, align 8
  %3 = load i64, ptr %1, align 8
  %cmp.i = icmp eq i64 %inc.i, %3
  br i1 %cmp.i, label %for.end, label %lor.lhs.false2.i

lor.lhs.false2.i:
  %going.i = getelementptr inbounds %struct.Loop, ptr %1, i64 0, i32 3
  %4 = load ptr, ptr %going.i, align 8
  %tobool3.not.i = icmp eq ptr %4, null
  br i1 %tobool3.not.i, label %if.end.i, label %land.lhs.true.i

land.lhs.true.i:
  %5 = load i8, ptr %4, align 1
  %tobool5.not.i = icmp eq i8 %5, 0
  br i1 %tobool5.not.i, label %for.end, label %if.end.i

if.end.i:
  %count.i = getelementptr inbounds %struct.Loop, ptr %1, i64 0, i32 1
  %6 = load i64, ptr %count.i, align 8
  %cmp633.i = icmp sgt i64 %6, 0
  br i1 %cmp633.i, label %for.body.lr.ph.i, label %for.cond.cleanup.i

for.body.lr.ph.i:
  %changes.i = getelementptr inbounds %struct.Loop, ptr %1, i64 0, i32 2
  br label %for.body.i

for.cond.cleanup.i:
  %7 = load ptr, ptr %times_ns.i, align 8
  %tobool10.not.i = icmp eq ptr %7, null
  br i1 %tobool10.not.i, label %if.end2, label %if.then11.i

for.body.i:
  %i.034.i = phi i64 [ 0, %for.body.lr.ph.i ], [ %inc9.i, %for.body.i ]
  %8 = load ptr, ptr %changes.i, align 8
  %arrayidx.i = getelementptr inbounds %struct.Change, ptr %8, i64 %i.034.i
  %next.i = getelementptr inbounds %struct.Change, ptr %8, i64 %i.034.i, i32 1
  %9 = load i64, ptr %next.i, align 8
  %10 = load ptr, ptr %arrayidx.i, align 8
  store i64 %9, ptr %10, align 8
  %11 = load i64, ptr %next.i, align 8
  %stride.i = getelementptr inbounds %struct.Change, ptr %8, i64 %i.034.i, i32 2
  %12 = load i64, ptr %stride.i, align 8
  %add.i = add nsw i64 %12, %11
  %toggle.i = getelementptr inbounds %struct.Change, ptr %8, i64 %i.034.i, i32 3
  %13 = load i64, ptr %toggle.i, align 8
  %xor.i = xor i64 %add.i, %13
  store i64 %xor.i, ptr %next.i, align 8
  %inc9.i = add nuw nsw i64 %i.034.i, 1
  %14 = load i64, ptr %count.i, align 8
  %cmp6.i = icmp slt i64 %inc9.i, %14
  br i1 %cmp6.i, label %for.body.i, label %for.cond.cleanup.i

if.then11.i:
  %15 = load i64, ptr %count, align 16
  %add.ptr.i = getelementptr inbounds i64, ptr %7, i64 %15
  store ptr %add.ptr.i, ptr %times_ns.i, align 8
  br label %if.end2

if.end2:
  %next.addr.1 = phi i64 [ %next.addr.0, %for.cond ], [ 0, %for.cond.cleanup.i ], [ 0, %if.then11.i ]
  %16 = load ptr, ptr %launches, align 8
  %arrayidx = getelementptr inbounds %struct.Launch, ptr %16, i64 %next.addr.1
  %together.i = getelementptr inbounds %struct.Launch, ptr %16, i64 %next.addr.1, i32 3
  %17 = load i64, ptr %together.i, align 8
  %cmp6.i49 = icmp sgt i64 %17, 0
  br i1 %cmp6.i49, label %for.body.i53.preheader, label %if.end9

for.body.i53.preheader:
  %xtraiter = and i64 %17, 3
  %18 = icmp ult i64 %17, 4
  br i1 %18, label %tasks_together.exit.unr-lcssa, label %for.body.i53.preheader.new

for.body.i53.preheader.new:
  %unroll_iter = and i64 %17, -4
  br label %for.body.i53

for.body.i53:
  %i.08.i = phi i64 [ 0, %for.body.i53.preheader.new ], [ %inc.i52.3, %for.body.i53 ]
  %tasks.07.i = phi i64 [ 0, %for.body.i53.preheader.new ], [ %add.i51.3, %for.body.i53 ]
  %niter = phi i64 [ 0, %for.body.i53.preheader.new ], [ %niter.next.3, %for.body.i53 ]
  %tasks1.i = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %i.08.i, i32 2
  %19 = load i64, ptr %tasks1.i, align 8
  %add.i51 = add nsw i64 %19, %tasks.07.i
  %inc.i52 = or i64 %i.08.i, 1
  %tasks1.i.1 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i52, i32 2
  %20 = load i64, ptr %tasks1.i.1, align 8
  %add.i51.1 = add nsw i64 %20, %add.i51
  %inc.i52.1 = or i64 %i.08.i, 2
  %tasks1.i.2 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i52.1, i32 2
  %21 = load i64, ptr %tasks1.i.2, align 8
  %add.i51.2 = add nsw i64 %21, %add.i51.1
  %inc.i52.2 = or i64 %i.08.i, 3
  %tasks1.i.3 = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %inc.i52.2, i32 2
  %22 = load i64, ptr %tasks1.i.3, align 8
  %add.i51.3 = add nsw i64 %22, %add.i51.2
  %inc.i52.3 = add nuw nsw i64 %i.08.i, 4
  %niter.next.3 = add i64 %niter, 4
  %niter.ncmp.3 = icmp eq i64 %niter.next.3, %unroll_iter
  br i1 %niter.ncmp.3, label %tasks_together.exit.unr-lcssa, label %for.body.i53

tasks_together.exit.unr-lcssa:
  %add.i51.lcssa.ph = phi i64 [ undef, %for.body.i53.preheader ], [ %add.i51.3, %for.body.i53 ]
  %i.08.i.unr = phi i64 [ 0, %for.body.i53.preheader ], [ %inc.i52.3, %for.body.i53 ]
  %tasks.07.i.unr = phi i64 [ 0, %for.body.i53.preheader ], [ %add.i51.3, %for.body.i53 ]
  %lcmp.mod.not = icmp eq i64 %xtraiter, 0
  br i1 %lcmp.mod.not, label %tasks_together.exit, label %for.body.i53.epil

for.body.i53.epil:
  %i.08.i.epil = phi i64 [ %inc.i52.epil, %for.body.i53.epil ], [ %i.08.i.unr, %tasks_together.exit.unr-lcssa ]
  %tasks.07.i.epil = phi i64 [ %add.i51.epil, %for.body.i53.epil ], [ %tasks.07.i.unr, %tasks_together.exit.unr-lcssa ]
  %epil.iter = phi i64 [ %epil.iter.next, %for.body.i53.epil ], [ 0, %tasks_together.exit.unr-lcssa ]
  %tasks1.i.epil = getelementptr inbounds %struct.Launch, ptr %arrayidx, i64 %i.08.i.epil, i32 2
  %23 = load i64, ptr %tasks1.i.epil, align 8
  %add.i51.epil = add nsw i64 %23, %tasks.07.i.epil
  %inc.i52.epil = add nuw nsw i64 %i.08.i.epil, 1
  %epil.iter.next = add i64 %epil.iter, 1
  %epil.iter.cmp.not = icmp eq i64 %epil.iter.next, %xtraiter
  br i1 %epil.iter.cmp.not, label %tasks_together.exit, label %for.body.i53.epil

tasks_together.exit:
  %add.i51.lcssa = phi i64 [ %add.i51.lcssa.ph, %tasks_together.exit.unr-lcssa ], [ %add.i51.epil, %for.body.i53.epil ]
  %cmp4 = icmp sgt i64 %add.i51.lcssa, 1
  br i1 %cmp4, label %for.end, label %if.end6

if.end6:
  %tobool7.not = icmp eq i64 %add.i51.lcssa, 0
  br i1 %tobool7.not, label %if.end9, label %if.then8

if.then8:
  %tasks14.i = getelementptr inbounds %struct.Launch, ptr %16, i64 %next.addr.1, i32 2
  %24 = load i64, ptr %tasks14.i, align 8
  %cmp.not15.i = icmp sgt i64 %24, 0
  br i1 %cmp.not15.i, label %run_task.exit, label %for.body.i54

for.body.i54:
  %25 = phi i64 [ %26, %for.body.i54 ], [ %24, %if.then8 ]
  %launch.addr.017.i = phi ptr [ %incdec.ptr.i, %for.body.i54 ], [ %arrayidx, %if.then8 ]
  %drawn.addr.016.i = phi i64 [ %sub.i, %for.body.i54 ], [ 0, %if.then8 ]
  %sub.i = sub nsw i64 %drawn.addr.016.i, %25
  %incdec.ptr.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.017.i, i64 1
  %tasks.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.017.i, i64 1, i32 2
  %26 = load i64, ptr %tasks.i, align 8
  %cmp.not.i = icmp slt i64 %sub.i, %26
  br i1 %cmp.not.i, label %run_task.exit, label %for.body.i54

run_task.exit:
  %drawn.addr.0.lcssa.i = phi i64 [ 0, %if.then8 ], [ %sub.i, %for.body.i54 ]
  %launch.addr.0.lcssa.i = phi ptr [ %arrayidx, %if.then8 ], [ %incdec.ptr.i, %for.body.i54 ]
  %.lcssa.i = phi i64 [ %24, %if.then8 ], [ %26, %for.body.i54 ]
  %conv.i = trunc i64 %drawn.addr.0.lcssa.i to i32
  %conv3.i = trunc i64 %.lcssa.i to i32
  %27 = load i64, ptr %team, align 64
  %conv4.i = trunc i64 %27 to i32
  %rem.i.i = urem i32 %conv.i, %conv4.i
  %rem1.i.i = urem i32 %conv3.i, %conv4.i
  %conv.i.i = zext i32 %rem.i.i to i64
  %div.i.i = udiv i32 %conv3.i, %conv4.i
  %conv2.i.i = zext i32 %div.i.i to i64
  %mul.i.i = mul nuw nsw i64 %conv2.i.i, %conv.i.i
  %cond.i.i = call i32 @llvm.umin.i32(i32 %rem.i.i, i32 %rem1.i.i)
  %conv4.i.i = zext i32 %cond.i.i to i64
  %add.i.i = add nuw nsw i64 %mul.i.i, %conv4.i.i
  %div5.i.i = udiv i32 %conv.i, %conv4.i
  %conv6.i.i = zext i32 %div5.i.i to i64
  %add7.i.i = add nuw nsw i64 %add.i.i, %conv6.i.i
  %28 = load ptr, ptr %launch.addr.0.lcssa.i, align 8
  %args.i = getelementptr inbounds %struct.Launch, ptr %launch.addr.0.lcssa.i, i64 0, i32 1
  %29 = load ptr, ptr %args.i, align 8
  %30 = load ptr, ptr %scratch.i, align 8
  %31 = load i64, ptr %scratch_bytes.i, align 16
  %mul.i = mul nsw i64 %31, %thread
  %add.ptr.i55 = getelementptr inbounds i8, ptr %30, i64 %mul.i
  call void %28(ptr noundef %29, i64 noundef %add7.i.i, ptr noundef %add.ptr.i55) #10
  %.pre = load i64, ptr %together.i, align 8
  br label %if.end9

if.end9:
  %32 = phi i64 [ %.pre, %run_task.exit ], [ %17, %if.end6 ], [ %17, %if.end2 ]
  %tasks.0.lcssa.i8892 = phi i64 [ %add.i51.lcssa, %run_task.exit ], [ 0, %if.end6 ], [ 0, %if.end2 ]
  %33 = load ptr, ptr %times_ns.i, align 8
  %tobool.not.i57 = icmp eq ptr %33, null
  br i1 %tobool.not.i57, label %cleanup, label %if.end.i59

if.end.i59:
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %now.i) #9
  %call.i = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %now.i) #10
  %cmp6.i58 = icmp sgt i64 %32, 0
  br i1 %cmp6.i58, label %for.body.i67.preheader, label %for.cond.cleanup.i61

for.body.i67.preheader:
  %xtraiter99 = and i64 %32, 1
  %34 = icmp eq i64 %32, 1
  br i1 %34, label %for.cond.cleanup.i61.loopexit.unr-lcssa, label %for.body.i67.preheader.new

for.body.i67.preheader.new:
  %unroll_iter102 = and i64 %32, -2
  br label %for.body.i67

for.cond.cleanup.i61.loopexit.unr-lcssa:
  %i.07.i.unr = phi i64 [ 0, %for.body.i67.preheader ], [ %add.1, %for.body.i67 ]
  %lcmp.mod101.not = icmp eq i64 %xtraiter99, 0
  br i1 %lcmp.mod101.not, label %for.cond.cleanup.i61, label %for.body.i67.epil

for.body.i67.epil:
  %35 = load i64, ptr %now.i, align 8
  %mul.i62.epil = mul nsw i64 %35, 1000000000
  %36 = load i64, ptr %nanoseconds.i, align 8
  %add.i63.epil = add nsw i64 %mul.i62.epil, %36
  %37 = load ptr, ptr %times_ns.i, align 8
  %add.epil = add nuw nsw i64 %i.07.i.unr, 1
  %add2.i.epil = add i64 %add.epil, %next.addr.1
  %arrayidx.i64.epil = getelementptr inbounds i64, ptr %37, i64 %add2.i.epil
  store i64 %add.i63.epil, ptr %arrayidx.i64.epil, align 8
  br label %for.cond.cleanup.i61

for.cond.cleanup.i61:
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %now.i) #9
  %.pre97 = load i64, ptr %together.i, align 8
  br label %cleanup

for.body.i67:
  %i.07.i = phi i64 [ 0, %for.body.i67.preheader.new ], [ %add.1, %for.body.i67 ]
  %niter103 = phi i64 [ 0, %for.body.i67.preheader.new ], [ %niter103.next.1, %for.body.i67 ]
  %38 = load i64, ptr %now.i, align 8
  %mul.i62 = mul nsw i64 %38, 1000000000
  %39 = load i64, ptr %nanoseconds.i, align 8
  %add.i63 = add nsw i64 %mul.i62, %39
  %40 = load ptr, ptr %times_ns.i, align 8
  %add = or i64 %i.07.i, 1
  %add2.i = add i64 %add, %next.addr.1
  %arrayidx.i64 = getelementptr inbounds i64, ptr %40, i64 %add2.i
  store i64 %add.i63, ptr %arrayidx.i64, align 8
  %41 = load i64, ptr %now.i, align 8
  %mul.i62.1 = mul nsw i64 %41, 1000000000
  %42 = load i64, ptr %nanoseconds.i, align 8
  %add.i63.1 = add nsw i64 %mul.i62.1, %42
  %43 = load ptr, ptr %times_ns.i, align 8
  %add.1 = add nuw nsw i64 %i.07.i, 2
  %add2.i.1 = add i64 %add.1, %next.addr.1
  %arrayidx.i64.1 = getelementptr inbounds i64, ptr %43, i64 %add2.i.1
  store i64 %add.i63.1, ptr %arrayidx.i64.1, align 8
  %niter103.next.1 = add nuw i64 %niter103, 2
  %niter103.ncmp.1 = icmp eq i64 %niter103.next.1, %unroll_iter102
  br i1 %niter103.ncmp.1, label %for.cond.cleanup.i61.loopexit.unr-lcssa, label %for.body.i67

cleanup:
  %44 = phi i64 [ %.pre97, %for.cond.cleanup.i61 ], [ %32, %if.end9 ]
  %add11 = add nsw i64 %44, %next.addr.1
  br label %for.cond

for.end:
  %tasks.1 = phi i64 [ %tasks.0, %land.lhs.true.i ], [ %tasks.0, %lor.lhs.false.i ], [ %tasks.0, %if.then ], [ %add.i51.lcssa, %tasks_together.exit ]
  %next.addr.3 = phi i64 [ %next.addr.0, %land.lhs.true.i ], [ %next.addr.0, %lor.lhs.false.i ], [ %next.addr.0, %if.then ], [ %next.addr.1, %tasks_together.exit ]
  %45 = load i64, ptr %count, align 16
  %cmp13 = icmp eq i64 %next.addr.3, %45
  br i1 %cmp13, label %if.then14, label %if.end18

if.then14:
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %46 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %46, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %tobool15.not = icmp eq i64 %thread, 0
  br i1 %tobool15.not, label %cleanup20, label %if.then16

if.then16:
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %47 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  %48 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i68 = icmp eq i32 %48, 0
  br i1 %tobool.not.i68, label %cleanup20, label %if.then.i

if.then.i:
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %49 = load i64, ptr %futex.i, align 32
  %call.i69 = call i64 (i64, ...) @syscall(i64 noundef %49, ptr noundef nonnull %wakeups.i, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %cleanup20

if.end18:
  %current = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 9
  store i64 %next.addr.3, ptr %current, align 8
  %tasks19 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 10
  store i64 %tasks.1, ptr %tasks19, align 16
  %unfinished = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 14
  store atomic i64 %tasks.1, ptr %unfinished monotonic, align 64
  %ticket.i71 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %50 = load atomic i64, ptr %ticket.i71 monotonic, align 64
  %shr.i72 = and i64 %50, -4294967296
  %shl.i73 = add i64 %shr.i72, 4294967296
  %conv.i74 = and i64 %tasks.1, 4294967295
  %or.i75 = or i64 %shl.i73, %conv.i74
  store atomic i64 %or.i75, ptr %ticket.i71 seq_cst, align 64
  %wakeups.i76 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %51 = atomicrmw add ptr %wakeups.i76, i32 1 seq_cst, align 4
  %sleepers.i77 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  %52 = load atomic i32, ptr %sleepers.i77 seq_cst, align 4
  %tobool.not.i78 = icmp eq i32 %52, 0
  br i1 %tobool.not.i78, label %cleanup20, label %if.then.i81

if.then.i81:
  %sub = add nsw i64 %tasks.1, -1
  %futex.i79 = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %53 = load i64, ptr %futex.i79, align 32
  %call.i80 = call i64 (i64, ...) @syscall(i64 noundef %53, ptr noundef nonnull %wakeups.i76, i32 noundef 129, i64 noundef %sub, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %cleanup20

cleanup20:
  ret void
}

; Function Attrs: nounwind
define void @ts_stop(ptr noundef %team) local_unnamed_addr #2 {
entry:
  %stopped = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 18
  store atomic i32 1, ptr %stopped seq_cst, align 8
  %ticket.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 12
  %0 = load atomic i64, ptr %ticket.i monotonic, align 64
  %shr.i = and i64 %0, -4294967296
  %or.i = add i64 %shr.i, 6442450944
  store atomic i64 %or.i, ptr %ticket.i seq_cst, align 64
  %wakeups.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 16
  %1 = atomicrmw add ptr %wakeups.i, i32 1 seq_cst, align 4
  %sleepers.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 17
  %2 = load atomic i32, ptr %sleepers.i seq_cst, align 4
  %tobool.not.i = icmp eq i32 %2, 0
  br i1 %tobool.not.i, label %wake_sleepers.exit, label %if.then.i

if.then.i:
  %futex.i = getelementptr inbounds %struct.Team, ptr %team, i64 0, i32 4
  %3 = load i64, ptr %futex.i, align 32
  %call.i = tail call i64 (i64, ...) @syscall(i64 noundef %3, ptr noundef nonnull %wakeups.i, i32 noundef 129, i64 noundef 2147483647, i32 noundef 0, i32 noundef 0, i32 noundef 0) #10
  br label %wake_sleepers.exit

wake_sleepers.exit:
  ret void
}

; Function Attrs: nofree nosync nounwind memory(readwrite, inaccessiblemem: none)
define void @ts_resize(ptr nocapture noundef readonly %args, i64 noundef %task, ptr nocapture noundef readnone %scratch) local_unnamed_addr #4 {
entry:
  %pointer = getelementptr inbounds %struct.Arg, ptr %args, i64 0, i32 1
  %0 = load ptr, ptr %pointer, align 8
  %is_set.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 13
  %1 = load i64, ptr %is_set.i, align 8
  %tobool.not.i = icmp eq i64 %1, 0
  %lnot.ext.i = zext i1 %tobool.not.i to i32
  %failed.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 12
  %2 = load ptr, ptr %failed.i, align 8
  %3 = load i32, ptr %2, align 4
  %tobool1.not.i = icmp eq i32 %3, 0
  br i1 %tobool1.not.i, label %if.end.i, label %if.end

if.end.i:
  store i64 0, ptr %is_set.i, align 8
  %4 = load ptr, ptr %0, align 8
  %numbers.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 1
  %5 = load i64, ptr %numbers.i.i, align 8
  %add.ptr.i.i = getelementptr inbounds i64, ptr %4, i64 %5
  %symbols.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 2
  %symbol_count.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 3
  %6 = load i64, ptr %symbol_count.i.i, align 8
  %cmp.not29.i.i = icmp slt i64 %6, 1
  br i1 %cmp.not29.i.i, label %lor.lhs.false.i, label %for.body.lr.ph.i.i

for.body.lr.ph.i.i:
  %known.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 11
  br label %for.body.i.i

for.body.i.i:
  %changed.0.i = phi i32 [ %lnot.ext.i, %for.body.lr.ph.i.i ], [ %or.i.i, %if.end.i.i ]
  %i.030.i.i = phi i64 [ 0, %for.body.lr.ph.i.i ], [ %inc.i.i, %if.end.i.i ]
  %7 = load ptr, ptr %symbols.i.i, align 8
  %arrayidx.i.i = getelementptr inbounds %struct.Symbol, ptr %7, i64 %i.030.i.i
  %8 = load ptr, ptr %arrayidx.i.i, align 8
  %9 = load i64, ptr %8, align 8
  %low.i.i = getelementptr inbounds %struct.Symbol, ptr %7, i64 %i.030.i.i, i32 1
  %10 = load i64, ptr %low.i.i, align 8
  %cmp2.i.i = icmp slt i64 %9, %10
  br i1 %cmp2.i.i, label %if.end, label %lor.lhs.false.i.i

lor.lhs.false.i.i:
  %high.i.i = getelementptr inbounds %struct.Symbol, ptr %7, i64 %i.030.i.i, i32 2
  %11 = load i64, ptr %high.i.i, align 8
  %cmp3.i.i = icmp sgt i64 %9, %11
  br i1 %cmp3.i.i, label %if.end, label %if.end.i.i

if.end.i.i:
  %arrayidx4.i.i = getelementptr inbounds i64, ptr %add.ptr.i.i, i64 %i.030.i.i
  %12 = load i64, ptr %arrayidx4.i.i, align 8
  %cmp5.i.i = icmp ne i64 %12, %9
  %conv.i.i = zext i1 %cmp5.i.i to i32
  %or.i.i = or i32 %changed.0.i, %conv.i.i
  %13 = load ptr, ptr %known.i.i, align 8
  %arrayidx6.i.i = getelementptr inbounds i64, ptr %13, i64 %i.030.i.i
  store i64 %9, ptr %arrayidx6.i.i, align 8
  store i64 %9, ptr %arrayidx4.i.i, align 8
  %inc.i.i = add nuw nsw i64 %i.030.i.i, 1
  %14 = load i64, ptr %symbol_count.i.i, align 8
  %cmp.not.not.i.i = icmp slt i64 %inc.i.i, %14
  br i1 %cmp.not.not.i.i, label %for.body.i.i, label %lor.lhs.false.i

lor.lhs.false.i:
  %15 = phi i64 [ %6, %if.end.i ], [ %14, %if.end.i.i ]
  %changed.1.i = phi i32 [ %lnot.ext.i, %if.end.i ], [ %or.i.i, %if.end.i.i ]
  %tobool4.not.i = icmp eq i32 %changed.1.i, 0
  br i1 %tobool4.not.i, label %if.end8.i, label %land.lhs.true.i

land.lhs.true.i:
  %16 = load ptr, ptr %0, align 8
  %operation_count.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 5
  %17 = load i64, ptr %operation_count.i.i, align 8
  %cmp.not41.i.i = icmp slt i64 %17, 1
  br i1 %cmp.not41.i.i, label %if.end8.i, label %for.body.lr.ph.i60.i

for.body.lr.ph.i60.i:
  %18 = load i64, ptr %numbers.i.i, align 8
  %add.i.i = add nsw i64 %18, %15
  %operations.i.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 4
  br label %for.body.i63.i

for.body.i63.i:
  %i.043.i.i = phi i64 [ 0, %for.body.lr.ph.i60.i ], [ %inc.i65.i, %if.end10.i.i ]
  %next.042.i.i = phi i64 [ %add.i.i, %for.body.lr.ph.i60.i ], [ %inc11.i.i, %if.end10.i.i ]
  %19 = load ptr, ptr %operations.i.i, align 8
  %arrayidx.i61.i = getelementptr inbounds %struct.Operation, ptr %19, i64 %i.043.i.i
  %20 = load i64, ptr %arrayidx.i61.i, align 8
  %left.i.i = getelementptr inbounds %struct.Operation, ptr %19, i64 %i.043.i.i, i32 1
  %21 = load i64, ptr %left.i.i, align 8
  %arrayidx2.i.i = getelementptr inbounds i64, ptr %16, i64 %21
  %22 = load i64, ptr %arrayidx2.i.i, align 8
  %right.i.i = getelementptr inbounds %struct.Operation, ptr %19, i64 %i.043.i.i, i32 2
  %23 = load i64, ptr %right.i.i, align 8
  %arrayidx3.i.i = getelementptr inbounds i64, ptr %16, i64 %23
  %24 = load i64, ptr %arrayidx3.i.i, align 8
  %arrayidx4.i62.i = getelementptr inbounds i64, ptr %16, i64 %next.042.i.i
  switch i64 %20, label %if.end [
    i64 0, label %sw.bb.i.i.i
    i64 1, label %sw.bb1.i.i.i
    i64 2, label %sw.bb4.i.i.i
    i64 3, label %sw.bb7.i.i.i
    i64 4, label %sw.bb14.i.i.i
    i64 5, label %sw.bb28.i.i.i
    i64 6, label %sw.bb31.i.i.i
  ]

sw.bb.i.i.i:
  %25 = tail call { i64, i1 } @llvm.sadd.with.overflow.i64(i64 %22, i64 %24)
  br label %computed.exit.i.i

sw.bb1.i.i.i:
  %26 = tail call { i64, i1 } @llvm.ssub.with.overflow.i64(i64 %22, i64 %24)
  br label %computed.exit.i.i

sw.bb4.i.i.i:
  %27 = tail call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %22, i64 %24)
  br label %computed.exit.i.i

sw.bb7.i.i.i:
  %tobool.not.i.i.i = icmp eq i64 %24, 0
  br i1 %tobool.not.i.i.i, label %if.end, label %if.end.i.i.i

if.end.i.i.i:
  %div.i.i.i = sdiv i64 %22, %24
  %rem.i.i.i = srem i64 %22, %24
  %tobool8.not.i.i.i = icmp ne i64 %rem.i.i.i, 0
  %left.lobit.i.i.i = lshr i64 %22, 63
  %conv.i.i.i = trunc i64 %left.lobit.i.i.i to i32
  %right.lobit71.i.i.i = lshr i64 %24, 63
  %conv10.i.i.i = trunc i64 %right.lobit71.i.i.i to i32
  %cmp11.i.i.i = icmp ne i32 %conv.i.i.i, %conv10.i.i.i
  %narrow.i.i.i = and i1 %cmp11.i.i.i, %tobool8.not.i.i.i
  %land.ext.neg.i.i.i = sext i1 %narrow.i.i.i to i64
  %sub.i.i.i = add i64 %div.i.i.i, %land.ext.neg.i.i.i
  br label %if.end.sink.split.i.i

sw.bb14.i.i.i:
  %tobool15.not.i.i.i = icmp eq i64 %24, 0
  br i1 %tobool15.not.i.i.i, label %if.end, label %if.end17.i.i.i

if.end17.i.i.i:
  %rem18.i.i.i = srem i64 %22, %24
  store i64 %rem18.i.i.i, ptr %arrayidx4.i62.i, align 8
  %tobool19.not.i.i.i = icmp eq i64 %rem18.i.i.i, 0
  br i1 %tobool19.not.i.i.i, label %if.end10.i.i, label %land.lhs.true.i.i.i

land.lhs.true.i.i.i:
  %rem18.lobit.i.i.i = lshr i64 %rem18.i.i.i, 63
  %conv21.i.i.i = trunc i64 %rem18.lobit.i.i.i to i32
  %right.lobit.i.i.i = lshr i64 %24, 63
  %conv23.i.i.i = trunc i64 %right.lobit.i.i.i to i32
  %cmp24.not.i.i.i = icmp eq i32 %conv21.i.i.i, %conv23.i.i.i
  br i1 %cmp24.not.i.i.i, label %if.end.i64.i, label %if.then26.i.i.i

if.then26.i.i.i:
  %add.i.i.i = add nsw i64 %rem18.i.i.i, %24
  br label %if.end.sink.split.i.i

sw.bb28.i.i.i:
  %cond.i.i.i = tail call i64 @llvm.smax.i64(i64 %22, i64 %24)
  br label %if.end.sink.split.i.i

sw.bb31.i.i.i:
  %cond37.i.i.i = tail call i64 @llvm.smin.i64(i64 %22, i64 %24)
  br label %if.end.sink.split.i.i

computed.exit.i.i:
  %.pn.i.i = phi { i64, i1 } [ %25, %sw.bb.i.i.i ], [ %26, %sw.bb1.i.i.i ], [ %27, %sw.bb4.i.i.i ]
  %.sink.i.i = extractvalue { i64, i1 } %.pn.i.i, 0
  store i64 %.sink.i.i, ptr %arrayidx4.i62.i, align 8
  %retval.0.shrunk.i.in.i.i = extractvalue { i64, i1 } %.pn.i.i, 1
  br i1 %retval.0.shrunk.i.in.i.i, label %if.end, label %if.end.i64.i

if.end.sink.split.i.i:
  %add.i.sink.i.i = phi i64 [ %add.i.i.i, %if.then26.i.i.i ], [ %sub.i.i.i, %if.end.i.i.i ], [ %cond.i.i.i, %sw.bb28.i.i.i ], [ %cond37.i.i.i, %sw.bb31.i.i.i ]
  store i64 %add.i.sink.i.i, ptr %arrayidx4.i62.i, align 8
  br label %if.end.i64.i

if.end.i64.i:
  %28 = phi i64 [ %rem18.i.i.i, %land.lhs.true.i.i.i ], [ %.sink.i.i, %computed.exit.i.i ], [ %add.i.sink.i.i, %if.end.sink.split.i.i ]
  %29 = add i64 %28, -4611686018427387905
  %or.cond.i.i = icmp ult i64 %29, 9223372036854775807
  br i1 %or.cond.i.i, label %if.end, label %if.end10.i.i

if.end10.i.i:
  %inc.i65.i = add nuw nsw i64 %i.043.i.i, 1
  %inc11.i.i = add nsw i64 %next.042.i.i, 1
  %30 = load i64, ptr %operation_count.i.i, align 8
  %cmp.not.not.i66.i = icmp slt i64 %inc.i65.i, %30
  br i1 %cmp.not.not.i66.i, label %for.body.i63.i, label %if.end8.i

if.end8.i:
  %rule_count.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 7
  %31 = load i64, ptr %rule_count.i, align 8
  %cmp.not92.i = icmp sgt i64 %31, 0
  br i1 %cmp.not92.i, label %for.body.lr.ph.i, label %for.end.i

for.body.lr.ph.i:
  %rules.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 6
  %32 = load ptr, ptr %rules.i, align 8
  br label %for.body.i

for.body.i:
  %i.093.i = phi i64 [ 0, %for.body.lr.ph.i ], [ %inc.i, %for.inc.i ]
  %arrayidx.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i
  %33 = load i64, ptr %arrayidx.i, align 8
  br i1 %tobool4.not.i, label %land.lhs.true10.i, label %if.end13.i

land.lhs.true10.i:
  %cmp11.not.i = icmp eq i64 %33, 3
  br i1 %cmp11.not.i, label %if.end13.thread.i, label %for.inc.i

if.end13.thread.i:
  %places.i99.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1
  br label %sw.bb54.i.i

if.end13.i:
  %34 = load ptr, ptr %0, align 8
  %places.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1
  switch i64 %33, label %if.end [
    i64 0, label %sw.bb.i.i
    i64 1, label %sw.bb13.i.i
    i64 2, label %sw.bb22.i.i
    i64 3, label %sw.bb54.i.i
    i64 4, label %sw.bb59.i.i
  ]

sw.bb.i.i:
  %35 = load i64, ptr %places.i.i, align 8
  %arrayidx1.i.i = getelementptr inbounds i64, ptr %34, i64 %35
  %36 = load i64, ptr %arrayidx1.i.i, align 8
  %conv.i68.i = sext i64 %36 to i128
  %arrayidx2.i69.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 1
  %37 = load i64, ptr %arrayidx2.i69.i, align 8
  %arrayidx3.i70.i = getelementptr inbounds i64, ptr %34, i64 %37
  %38 = load i64, ptr %arrayidx3.i70.i, align 8
  %conv4.i.i = sext i64 %38 to i128
  %add.i71.i = add nsw i128 %conv4.i.i, %conv.i68.i
  %arrayidx5.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 2
  %39 = load i64, ptr %arrayidx5.i.i, align 8
  %arrayidx6.i72.i = getelementptr inbounds i64, ptr %34, i64 %39
  %40 = load i64, ptr %arrayidx6.i72.i, align 8
  %conv7.i.i = sext i64 %40 to i128
  %arrayidx8.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 3
  %41 = load i64, ptr %arrayidx8.i.i, align 8
  %arrayidx9.i.i = getelementptr inbounds i64, ptr %34, i64 %41
  %42 = load i64, ptr %arrayidx9.i.i, align 8
  %conv10.i.i = sext i64 %42 to i128
  %add11.i.i = add nsw i128 %conv10.i.i, %conv7.i.i
  %cmp.i.not.i = icmp sgt i128 %add.i71.i, %add11.i.i
  br i1 %cmp.i.not.i, label %if.end, label %for.inc.i

sw.bb13.i.i:
  %43 = load i64, ptr %places.i.i, align 8
  %arrayidx15.i.i = getelementptr inbounds i64, ptr %34, i64 %43
  %44 = load i64, ptr %arrayidx15.i.i, align 8
  %arrayidx16.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 1
  %45 = load i64, ptr %arrayidx16.i.i, align 8
  %arrayidx17.i.i = getelementptr inbounds i64, ptr %34, i64 %45
  %46 = load i64, ptr %arrayidx17.i.i, align 8
  %add18.i.i = add i64 %46, %44
  %arrayidx19.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 2
  %47 = load i64, ptr %arrayidx19.i.i, align 8
  %rem.i.i = srem i64 %add18.i.i, %47
  %cmp20.i.i = icmp eq i64 %rem.i.i, 0
  br i1 %cmp20.i.i, label %for.inc.i, label %if.end

sw.bb22.i.i:
  %48 = load i64, ptr %places.i.i, align 8
  %arrayidx24.i.i = getelementptr inbounds i64, ptr %34, i64 %48
  %49 = load i64, ptr %arrayidx24.i.i, align 8
  %conv25.i.i = sext i64 %49 to i128
  %arrayidx26.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 1
  %50 = load i64, ptr %arrayidx26.i.i, align 8
  %arrayidx27.i.i = getelementptr inbounds i64, ptr %34, i64 %50
  %51 = load i64, ptr %arrayidx27.i.i, align 8
  %conv28.i.i = sext i64 %51 to i128
  %add29.i.i = add nsw i128 %conv28.i.i, %conv25.i.i
  %arrayidx30.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 2
  %52 = load i64, ptr %arrayidx30.i.i, align 8
  %arrayidx31.i.i = getelementptr inbounds i64, ptr %34, i64 %52
  %53 = load i64, ptr %arrayidx31.i.i, align 8
  %conv32.i.i = sext i64 %53 to i128
  %arrayidx33.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 3
  %54 = load i64, ptr %arrayidx33.i.i, align 8
  %arrayidx34.i.i = getelementptr inbounds i64, ptr %34, i64 %54
  %55 = load i64, ptr %arrayidx34.i.i, align 8
  %conv35.i.i = sext i64 %55 to i128
  %add36.i.i = add nsw i128 %conv35.i.i, %conv32.i.i
  %arrayidx37.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 4
  %56 = load i64, ptr %arrayidx37.i.i, align 8
  %arrayidx38.i.i = getelementptr inbounds i64, ptr %34, i64 %56
  %57 = load i64, ptr %arrayidx38.i.i, align 8
  %arrayidx39.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 5
  %58 = load i64, ptr %arrayidx39.i.i, align 8
  %arrayidx40.i.i = getelementptr inbounds i64, ptr %34, i64 %58
  %59 = load i64, ptr %arrayidx40.i.i, align 8
  %cmp41.i.i = icmp slt i64 %57, 1
  %cmp43.i.i = icmp slt i64 %59, 1
  %or.cond.i73.i = select i1 %cmp41.i.i, i1 true, i1 %cmp43.i.i
  br i1 %or.cond.i73.i, label %for.inc.i, label %lor.lhs.false45.i.i

lor.lhs.false45.i.i:
  %conv46.i.i = zext i64 %59 to i128
  %add47.i.i = add nsw i128 %add36.i.i, %conv46.i.i
  %cmp48.not.i.i = icmp slt i128 %add29.i.i, %add47.i.i
  br i1 %cmp48.not.i.i, label %holds.exit.i, label %for.inc.i

sw.bb54.i.i:
  %places.i100.i = phi ptr [ %places.i99.i, %if.end13.thread.i ], [ %places.i.i, %if.end13.i ]
  %60 = load i64, ptr %places.i100.i, align 8
  %61 = inttoptr i64 %60 to ptr
  %62 = load i64, ptr %61, align 8
  %arrayidx56.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 1
  %63 = load i64, ptr %arrayidx56.i.i, align 8
  %64 = inttoptr i64 %63 to ptr
  %65 = load i64, ptr %64, align 8
  %cmp57.i.i = icmp eq i64 %62, %65
  br i1 %cmp57.i.i, label %for.inc.i, label %if.end

sw.bb59.i.i:
  %66 = load i64, ptr %places.i.i, align 8
  %arrayidx61.i.i = getelementptr inbounds i64, ptr %34, i64 %66
  %67 = load i64, ptr %arrayidx61.i.i, align 8
  %arrayidx62.i.i = getelementptr inbounds %struct.Rule, ptr %32, i64 %i.093.i, i32 1, i64 1
  %68 = load i64, ptr %arrayidx62.i.i, align 8
  %cmp63.i.not.i = icmp sgt i64 %67, %68
  br i1 %cmp63.i.not.i, label %if.end, label %for.inc.i

holds.exit.i:
  %conv50.i.i = zext i64 %57 to i128
  %add51.i.i = add nsw i128 %add29.i.i, %conv50.i.i
  %cmp52.i.not.i = icmp slt i128 %add36.i.i, %add51.i.i
  br i1 %cmp52.i.not.i, label %if.end, label %for.inc.i

for.inc.i:
  %inc.i = add nuw nsw i64 %i.093.i, 1
  %exitcond.not.i = icmp eq i64 %inc.i, %31
  br i1 %exitcond.not.i, label %for.end.i, label %for.body.i

for.end.i:
  %69 = load ptr, ptr %0, align 8
  %patch_count.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 9
  br i1 %tobool4.not.i, label %resized.exit, label %land.rhs.lr.ph.i

land.rhs.lr.ph.i:
  %patches.i = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 8
  %70 = load i64, ptr %patch_count.i, align 8
  %cmp25.i18 = icmp sgt i64 %70, 0
  br i1 %cmp25.i18, label %for.body27.i, label %resized.exit

for.body27.i:
  %i22.094.i19 = phi i64 [ %inc33.i, %for.body27.i ], [ 0, %land.rhs.lr.ph.i ]
  %71 = load ptr, ptr %patches.i, align 8
  %arrayidx28.i = getelementptr inbounds %struct.Patch, ptr %71, i64 %i22.094.i19
  %base.i = getelementptr inbounds %struct.Patch, ptr %71, i64 %i22.094.i19, i32 1
  %72 = load i64, ptr %base.i, align 8
  %first.i = getelementptr inbounds %struct.Patch, ptr %71, i64 %i22.094.i19, i32 2
  %73 = load i64, ptr %first.i, align 8
  %arrayidx29.i = getelementptr inbounds i64, ptr %69, i64 %73
  %74 = load i64, ptr %arrayidx29.i, align 8
  %add.i = add nsw i64 %74, %72
  %second.i = getelementptr inbounds %struct.Patch, ptr %71, i64 %i22.094.i19, i32 3
  %75 = load i64, ptr %second.i, align 8
  %arrayidx30.i = getelementptr inbounds i64, ptr %69, i64 %75
  %76 = load i64, ptr %arrayidx30.i, align 8
  %add31.i = add nsw i64 %add.i, %76
  %77 = load ptr, ptr %arrayidx28.i, align 8
  store i64 %add31.i, ptr %77, align 8
  %inc33.i = add nuw nsw i64 %i22.094.i19, 1
  %78 = load i64, ptr %patch_count.i, align 8
  %cmp25.i = icmp slt i64 %inc33.i, %78
  br i1 %cmp25.i, label %for.body27.i, label %resized.exit

resized.exit:
  store i64 1, ptr %is_set.i, align 8
  br label %cleanup

if.end:
  store i64 0, ptr %is_set.i, align 8
  %79 = load ptr, ptr %failed.i, align 8
  store i32 1, ptr %79, align 4
  %task_count = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 10
  %80 = load i64, ptr %task_count, align 8
  %cmp16 = icmp sgt i64 %80, 0
  br i1 %cmp16, label %for.body.lr.ph, label %cleanup

for.body.lr.ph:
  %patches = getelementptr inbounds %struct.Resize, ptr %0, i64 0, i32 8
  br label %for.body

for.body:
  %i.017 = phi i64 [ 0, %for.body.lr.ph ], [ %inc, %for.body ]
  %81 = load ptr, ptr %patches, align 8
  %arrayidx3 = getelementptr inbounds %struct.Patch, ptr %81, i64 %i.017
  %82 = load ptr, ptr %arrayidx3, align 8
  store i64 0, ptr %82, align 8
  %inc = add nuw nsw i64 %i.017, 1
  %83 = load i64, ptr %task_count, align 8
  %cmp = icmp slt i64 %inc, %83
  br i1 %cmp, label %for.body, label %cleanup

cleanup:
  ret void
}

declare i64 @syscall(i64 noundef, ...) local_unnamed_addr

declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare { i64, i1 } @llvm.sadd.with.overflow.i64(i64, i64) #6

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare { i64, i1 } @llvm.ssub.with.overflow.i64(i64, i64) #6

; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64) #6

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.umin.i32(i32, i32) #7

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smin.i64(i64, i64) #7

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #7

attributes #0 = { mustprogress nofree norecurse nosync nounwind willreturn memory(none) }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(argmem: write) }
attributes #2 = { nounwind }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #4 = { nofree nosync nounwind memory(readwrite, inaccessiblemem: none) }
attributes #6 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #7 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #8 = { nobuiltin }
attributes #9 = { nounwind }
attributes #10 = { nobuiltin nounwind }
